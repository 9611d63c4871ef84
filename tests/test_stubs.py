"""The committed stubs and the committed image follow from the protos."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

ROOT = Path(__file__).parents[1]
PROTOS = ROOT / "protos"
IMAGE = PROTOS / "foredraft.binpb"
STUBS = ROOT / "foredraft" / "v1"


def make_stubs(destination: Path) -> Path:
    files = sorted(str(path) for path in PROTOS.glob("foredraft/v1/*.proto"))
    outputs = [f"--{kind}={destination}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    assert protoc.main(["protoc", f"-I{PROTOS}", *outputs, *files]) == 0
    return destination / "foredraft" / "v1"


def buf(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    program = shutil.which("buf", path=environment["PATH"])
    assert program is not None
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def test_committed_stubs_are_what_the_protos_give(tmp_path: Path) -> None:
    made = make_stubs(tmp_path)
    names = {path.name for path in made.iterdir()}
    assert {path.name for path in STUBS.iterdir() if path.suffix != ""} - {"__init__.py"} == names
    for name in names:
        assert (STUBS / name).read_text() == (made / name).read_text(), f"{name}: run `make proto`"


def test_protos_follow_the_style_rules() -> None:
    checked = buf("lint", str(PROTOS))
    assert checked.returncode == 0, checked.stdout


def test_protos_do_not_break_the_committed_image() -> None:
    checked = buf("breaking", str(PROTOS), "--against", str(IMAGE))
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [("uint64 seq_id = 1;", "string seq_id = 1;"), ("uint32 max_depth = 2;", "")],
)
def test_a_breaking_change_is_noticed(tmp_path: Path, old: str, new: str) -> None:
    changed = tmp_path / "protos"
    shutil.copytree(PROTOS, changed)
    for proto in changed.glob("foredraft/v1/*.proto"):
        proto.chmod(0o644)
        proto.write_text(proto.read_text().replace(old, new))
    assert buf("breaking", str(changed), "--against", str(IMAGE)).returncode != 0
