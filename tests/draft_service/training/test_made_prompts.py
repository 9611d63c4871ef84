"""A target makes up prompts: where it begins, what is kept, and the command around it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support.tiny_models import make_tiny_model

from draft_service.training.made_prompts import PromptSettings, make_prompts, opening_ids
from draft_service.training.prompt_ids import chat_ids
from draft_service.training.stopped import Stopped
from foredraft.cli.main import main
from foredraft.params import InvalidField
from foredraft.prompt_file import read_prompts


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    return make_tiny_model(directory, "llama", hidden=32, spread=0.02)  # all tokens about as likely


def settings_in(folder: Path, target: Path, **changes: Any) -> PromptSettings:
    made = PromptSettings(
        target,
        folder / "made.jsonl",
        count=40,
        begins=("", "Why "),
        most=100,
        batch=16,
        device="cpu",
    )
    return replace(made, **changes)


def test_an_opening_is_what_stands_before_a_prompt_s_end(target: Path) -> None:
    whole = chat_ids(target, [[{"role": "user", "content": "Why not"}]])[0]
    first, why = opening_ids(target, ["", "Why"])
    assert whole[: len(why)] == why and why[: len(first)] == first
    assert 0 < len(first) < len(why) < len(whole)


def test_prompts_begin_as_they_are_told_and_none_comes_twice(tmp_path: Path, target: Path) -> None:
    settings = settings_in(tmp_path, target)
    made = make_prompts(settings, Event())
    texts = [json.loads(line)["prompt"] for line in settings.output.read_text().splitlines()]
    assert made == len(texts) == len(set(texts)) > 5
    assert all(texts) and "\ufffd" not in "".join(texts)
    assert 0 < sum(text.startswith("Why") for text in texts) < made
    assert len(read_prompts(settings.output, None, option="--prompts")) == made
    again = settings_in(tmp_path, target, output=tmp_path / "again.jsonl")
    make_prompts(again, Event())
    assert again.output.read_text() == settings.output.read_text()
    other = settings_in(tmp_path, target, output=tmp_path / "other.jsonl", seed=1)
    make_prompts(other, Event())
    assert other.output.read_text() != settings.output.read_text()


def test_a_stopped_run_writes_nothing(tmp_path: Path, target: Path) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(Stopped):
        make_prompts(settings_in(tmp_path, target), stop)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_is_told_by_name(
    tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidField, match=r"^--max-tokens must be at most \d+, which"):
        make_prompts(settings_in(tmp_path, target, most=1_000_000), Event())
    arguments = ["make-prompts", "--target", str(target), "--count", "40", "--max-tokens", "90"]
    with pytest.raises(InvalidField, match=r"^--begin must be shorter than the target's context"):
        make_prompts(settings_in(tmp_path, target, begins=("why " * 999,)), Event())
    with pytest.raises(InvalidField, match=r"^--max-tokens must be more: no prompt ended"):
        make_prompts(settings_in(tmp_path, target, most=1, count=1), Event())
    for wrong in (tmp_path / "no" / "file", Path("/dev/null"), tmp_path):
        assert main([*arguments, "--output", str(wrong)]) == 2
        assert "--output must be a new file in a folder to write to" in capsys.readouterr().err
    output = tmp_path / "made.jsonl"
    assert main([*arguments, "--output", str(output), "--temperatures", "0"]) == 2
    assert "--temperatures must be above 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main([*arguments, "--output", str(output), "--device", "cpu"]) == 0
    assert f"{output}: " in capsys.readouterr().out
