"""The command: its options, its errors in one line, its end at a signal."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.tiny_models import make_tiny_llama

from foredraft.cli.main import build_parser, main
from foredraft.cli.until_signal import INTERRUPTED
from foredraft.models.widen.wide_directory import WideDirectory


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "source")


def test_a_model_is_made_once(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "wide"
    given = ["widen", str(source), str(made), "--shape", "layers=3,hidden=96", "--dtype", "float32"]
    assert main(given) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{made}: ") and told.endswith(" parameters, 0.0 GB\n")
    assert (made / "config.json").exists() and (made / "README.md").exists()
    for place in (made, tmp_path / "no" / "folder"):
        assert main([*given[:2], str(place), *given[3:]]) == 2
        error = "foredraft: DST must be a directory that is not there yet, in a folder that is, not"
        assert capsys.readouterr().err.startswith(error)
    assert [path.name for path in tmp_path.iterdir()] == ["wide"]


def test_a_source_that_is_too_large_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["widen", str(source), str(tmp_path / "wide"), "--shape"]
    assert main([*given, "hidden=32"]) == 2
    error = (
        "foredraft: --shape must be one that has room for the source: hidden at least 64, not 32"
    )
    assert capsys.readouterr().err == f"{error}\n"
    assert main([*given, "hidden=64", "--pad-vocabulary", "8"]) == 2
    assert "--pad-vocabulary must be at least the source's 128 rows" in capsys.readouterr().err


def test_a_full_disk_is_told(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=5))
    assert main(["widen", str(source), str(tmp_path / "wide"), "--shape", "hidden=96"]) == 1
    assert "but 5 bytes (0.0 GB) are free" in capsys.readouterr().err


def test_a_signal_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = WideDirectory.write

    def endless(directory: WideDirectory, destination: Path) -> Iterator[int]:
        with closing(write(directory, destination)) as written:
            yield next(written)
            assert list(tmp_path.iterdir())
            os.kill(os.getpid(), signal.SIGTERM)
            while True:
                time.sleep(0.005)
                yield 0

    monkeypatch.setattr(WideDirectory, "write", endless)
    given = ["widen", str(source), str(tmp_path / "wide"), "--shape", "hidden=96"]
    assert main(given) == INTERRUPTED
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shape", "llama"], "must be llama-8b, llama-70b, or SIZE=N with commas between them"),
        (["--shape", "hidden=96,hidden=96"], "SIZE none twice of layers, hidden, intermediate"),
        (["--shape", ""], "must be llama-8b, llama-70b, or SIZE=N"),
        (["--shape", "hidden=0"], "must be a whole number from 1 to 16777216, not 0"),
        (["--shape", "hidden"], "must be a whole number from 1 to 16777216, not"),
        (["--shape", "llama-8b", "--dtype", "float8"], "--dtype: invalid choice: 'float8'"),
        (["--shape", "llama-8b", "--seed", "-1"], "--seed: must be a whole number from 0 to"),
        ([], "the following arguments are required: --shape"),
    ],
    ids=["name", "twice", "nothing", "zero", "no-number", "dtype", "seed", "missing"],
)
def test_wrong_values(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args(["widen", "source", "wide", *flags])
    assert message in capsys.readouterr().err
