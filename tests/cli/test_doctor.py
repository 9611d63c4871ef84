"""One fact a line, and an exit code that a script can use."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from foredraft.cli import doctor
from foredraft.cli.main import main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path))
    return tmp_path


def facts(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    lines = capsys.readouterr().out.splitlines()
    return {name: (state, rest) for state, name, rest in (line.split(None, 2) for line in lines)}


def test_a_complete_machine_is_fine(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert main(["doctor"]) == 0
    found = facts(capsys)
    for name in ("grpcio", "protobuf", "torch", "transformers"):
        assert found[name] == ("ok", importlib.metadata.version(name))
    assert found["cache"] == ("ok", str(cache))
    assert {"python", "cores", "memory", "gpu", "port"} <= found.keys()


def test_a_model_that_is_not_there_yet_is_a_note(
    capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    assert main(["doctor"]) == 0
    assert facts(capsys)["model"][0] == "note"
    (cache / "models" / "smollm2-135m-instruct").mkdir(parents=True)
    assert main(["doctor"]) == 0
    assert facts(capsys)["model"][0] == "ok"


def test_a_missing_package_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"torch": None, "grpcio": "9"}
    real = doctor._version
    monkeypatch.setattr(
        doctor, "_version", lambda name: versions[name] if name in versions else real(name)
    )
    assert main(["doctor"]) == 1
    found = facts(capsys)
    assert found["torch"] == ("missing", "not installed: pip install 'foredraft[worker]'")
    assert found["grpcio"] == ("ok", "9")
