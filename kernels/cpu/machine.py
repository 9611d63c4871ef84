"""What this processor has: whether kernels run on it, and how wide."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

_NEEDED = ("avx2", "fma", "f16c")
# Two products of 16 bits and two sums in one instruction, for 16 lanes, and 32 registers of these.
_WIDE = ("avx512f", "avx512bw", "avx512vl", "avx512vnni")


@cache
def available() -> bool:
    """True on Linux on x86-64 with AVX2, where llvmlite is installed and can be loaded."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        from llvmlite import binding
    except (ImportError, OSError):  # the second: LLVM's own library is missing, or of another libc
        return False
    return _has(binding, _NEEDED)


@cache
def vector_lanes() -> int:
    """Of 32 bits, in a vector of products and attention, where kernels are `available`."""
    from llvmlite import binding

    return 16 if _has(binding, _WIDE) else 8


def _has(binding: Any, names: Sequence[str]) -> bool:
    features = binding.get_host_cpu_features()
    return all(features.get(name, False) for name in names)
