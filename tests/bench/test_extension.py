"""What one pass of the draft takes: what is measured, and which options are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.tiny_models import make_tiny_llama, make_tiny_model

from bench.extension import main
from bench.random_draft import make_random_draft
from bench.tables import _rows
from foredraft.cli.faults import CommandError
from foredraft.engine.model_config import read_model_config
from foredraft.params import InvalidField


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", context=128)


def test_every_time_lies_within_the_one_around_it(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    options = ["--layers", "1", "--output-ids", "50", "--context", "40", "--rounds", "3"]
    more = ["--sequences", "1,3", "--temperature", "0.5", "--device", "cpu"]
    assert main(["--model", str(model), *options, *more, "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert [row["sequences"] for row in report["rows"]] == [1, 3]
    for row in report["rows"]:
        for of in ("p50", "least"):
            assert row["turn_ms"][of] >= row["extension_ms"][of] >= row["engine_ms"][of] > 0
        assert row["device_ms"]["least"] > 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    [(what, found)] = _rows(report)
    assert what == "one pass of a draft (random weights), context 40, 1 / 3 at once"
    assert found.startswith("from request to nodes ") and found.count(" / ") == 2


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_random_draft_has_the_targets_shape(tmp_path: Path, family: str) -> None:
    target = make_tiny_model(tmp_path / "target", family, layers=3)
    draft = read_model_config(make_random_draft(target, tmp_path / "draft", 2, 1000))
    config = read_model_config(target)
    assert draft.layers == 2 and draft.hidden == config.hidden


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--sequences", "8,65"], "--sequences must be at most 64"),
        (["--context", "120"], "--context must be at most"),
        (["--temperature", "-1"], "temperature must be a number from 0 to 100"),
        (["--json", "/proc/none/out.json"], "--json must be a file that can be written"),
    ],
    ids=["sequences", "context", "temperature", "json"],
)
def test_options_that_cannot_be_used(model: Path, options: list[str], text: str) -> None:
    with pytest.raises(InvalidField, match=text):
        main(["--model", str(model), "--rounds", "2", "--layers", "1", *options])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_by_name(model: Path) -> None:
    with pytest.raises(InvalidField, match="--device must be auto or cpu"):
        main(["--model", str(model), "--device", "cuda"])


def test_a_draft_of_another_tokenizer_is_refused(tmp_path: Path, model: Path) -> None:
    other = make_tiny_llama(tmp_path / "other", vocab=140, context=128)
    with pytest.raises(CommandError, match="tokenizer"):
        main(["--model", str(model), "--draft", str(other), "--rounds", "2"])
