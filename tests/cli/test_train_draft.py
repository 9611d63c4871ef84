"""The command: its options, its errors in one line, its end at a signal."""

from __future__ import annotations

import builtins
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import make_tiny_model

from foredraft.cli.main import build_parser, main
from foredraft.cli.until_signal import INTERRUPTED


def arguments(directory: Path, *more: str) -> list[str]:
    prompts = directory / "prompts.jsonl"
    if not prompts.exists():
        make_tiny_model(directory / "target", "llama", hidden=32, spread=0.4)
        rows = [json.dumps({"prompt": f"Question {number}"}) for number in range(12)]
        prompts.write_text("\n".join(rows))
    flags = {
        "--target": directory / "target",
        "--output": directory / "draft",
        "--prompts": prompts,
        "--holdout": 2,
        "--length": 128,
        "--max-answer": 8,
        "--temperatures": "0",
        "--layers": "1",
        "--batch": 2,
        "--device": "cpu",
    }
    return ["train-draft", *(str(part) for pair in flags.items() for part in pair), *more]


def test_a_draft_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, "--steps", "2")) == 0
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config["num_hidden_layers"] == 1
    assert (tmp_path / "draft.work" / "answers" / "held_out.safetensors").is_file()
    assert f"{tmp_path / 'draft'}: top-1 " in capsys.readouterr().out
    assert main(arguments(tmp_path, "--steps", "2")) == 2
    error = "foredraft: --output must be a directory that is not there yet: "
    assert capsys.readouterr().err.startswith(error)


def test_a_signal_leaves_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "draft.work" / "training.jsonl"

    def interrupt() -> None:
        while not (log.exists() and log.read_text()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    given = arguments(tmp_path, "--steps", "100000")
    watcher = threading.Thread(target=interrupt, daemon=True)
    watcher.start()
    assert main(given) == INTERRUPTED
    watcher.join()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"stopped; what is done is in {log.parent}: the same command goes on there"
    assert (log.parent / "checkpoint.pt").is_file()
    assert not (tmp_path / "draft").exists()


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="there is such a GPU")
def test_a_gpu_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, "--device", "cuda:7")) == 2
    assert "foredraft: --device must be auto, cpu or one of the " in capsys.readouterr().err
    assert not (tmp_path / "draft.work").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layers", "a"], "--layers: must be numbers with commas between them, not 'a'"),
        (["--temperatures", "0,-1"], "--temperatures: must be a number from 0 to 100, not -1"),
        (["--temperatures", "0,0"], "--temperatures: must be temperatures, none twice"),
        (["--length", "9"], "--length: must be a whole number from 64 to 32767, not 9"),
        (["--vocabulary", "2"], "--vocabulary: must be a whole number from 16 to"),
        (["--weight-decay", "2"], "--weight-decay: must be a number from 0 to 1, not 2"),
        (["--minutes", "0"], "--minutes: must be a number above 0"),
        (["--minutes", "1", "--steps", "1"], "--steps: not allowed with argument --minutes"),
        (["--device", "gpu"], "--device: must be auto, cpu or cuda:N, not 'gpu'"),
    ],
)
def test_wrong_values(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args(["train-draft", "--output", "o", "--prompts", "p", *flags])
    assert message in capsys.readouterr().err


def test_missing_packages_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(tmp_path, "--steps", "1")
    capsys.readouterr()
    original = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return original(name, *rest)

    for name in [name for name in sys.modules if name.startswith("draft_service.training")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert main(given) == 1
    needed = "foredraft: train-draft needs torch: pip install 'foredraft[train]'\n"
    assert capsys.readouterr().err == needed
