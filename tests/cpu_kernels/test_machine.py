"""Where kernels cannot be made they are not offered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernels.cpu import available
from kernels.cpu.machine import vector_lanes


@pytest.mark.parametrize(
    "library",
    [None, "raise OSError('Could not find/load shared object file')"],
    ids=["missing", "broken"],
)
def test_without_llvm_nothing_is_available(
    library: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "llvmlite"]:
        monkeypatch.delitem(sys.modules, name)
    if library is None:
        monkeypatch.setitem(sys.modules, "llvmlite", None)
    else:
        (tmp_path / "llvmlite").mkdir()
        (tmp_path / "llvmlite/__init__.py").touch()
        (tmp_path / "llvmlite/binding.py").write_text(library)
        monkeypatch.syspath_prepend(tmp_path)
    assert not available.__wrapped__()


@pytest.mark.parametrize("missing", [None, "avx512vnni", "avx512bw"])
def test_vectors_are_wide_where_the_processor_has_all_that_takes(
    missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    binding = pytest.importorskip("llvmlite").binding
    features = dict.fromkeys(("avx512f", "avx512bw", "avx512vl", "avx512vnni"), True)
    features.pop(missing or "", None)
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: features)
    assert vector_lanes.__wrapped__() == (16 if missing is None else 8)
