"""The flag --trace-file: passed on to all three processes, refused where it cannot be written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from foredraft.cli.main import build_parser, main
from foredraft.config import StackConfig
from foredraft.supervisor import commands


def test_all_three_processes_get_it(monkeypatch, tmp_path):
    started: dict[str, list[str]] = {}

    def child(role, arguments, *more, **settings):
        started[role] = arguments

    monkeypatch.setattr(commands, "_child", child)
    config = StackConfig("127.0.0.1", 0, tmp_path)
    for file in (None, tmp_path / "t.jsonl"):
        _make(dataclasses.replace(config, trace_file=file), tmp_path)
        for role in ("draft", "verify", "gateway"):
            args = build_parser().parse_args(["serve", role, *started[role]])
            assert args.trace_file == file


def _make(config: StackConfig, directory: Path) -> None:
    commands.make_children(config, "127.0.0.1:1", directory, None)


@pytest.mark.parametrize(("file", "fault"), [("", "Is a directory"), ("no/t", "No such file")])
def test_a_file_that_cannot_be_written(file, fault, tmp_path, capsys):
    path = tmp_path / file
    arguments = ["serve", "gateway", "--grpc-listen", "127.0.0.1:0", "--verify", "127.0.0.1:1"]
    arguments += ["--model", str(tmp_path), "--trace-file", str(path)]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert f"--trace-file {path}: {fault}" in error and error.count("\n") == 1
