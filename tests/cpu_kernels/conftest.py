"""Kernels of a kind of processor are tested on it alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.cpu import available

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if available():
        return
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs Linux on x86-64 with AVX2"))
