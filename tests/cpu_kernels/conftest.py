"""Kernels of a kind of processor are tested on it alone."""

from __future__ import annotations

from pathlib import Path

from kernels.cpu import available

# Not skipped but left out: elsewhere what these tests import cannot be imported.
_TESTS_OF_KERNELS = {file.name for file in Path(__file__).parent.glob("test_*.py")}
collect_ignore = [] if available() else sorted(_TESTS_OF_KERNELS - {"test_machine.py"})
