"""The precisions that services are tested in."""

from __future__ import annotations

import pytest

from kernels.cpu import available

INT8 = pytest.param("int8", marks=pytest.mark.skipif(not available(), reason="needs AVX2"))

# What a machine chooses by itself, and the kernels that it chooses for weights in blocks.
TARGET_DTYPES = [
    "auto",
    INT8,
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("float32", "fp8")),
]
