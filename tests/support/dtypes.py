"""The precisions that services are tested in."""

from __future__ import annotations

import pytest

from kernels.cpu import available

# What a machine chooses by itself, and the kernels that it chooses for weights in blocks.
TARGET_DTYPES = [
    "auto",
    pytest.param("int8", marks=pytest.mark.skipif(not available(), reason="needs AVX2")),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("float32", "fp8")),
]
