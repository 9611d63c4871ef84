"""Whether kernels run on this processor."""

from __future__ import annotations

import platform
import sys
from functools import cache

_NEEDED = ("avx2", "fma", "f16c")


@cache
def available() -> bool:
    """True on Linux on x86-64 with AVX2, where llvmlite is installed and can be loaded."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        from llvmlite import binding
    except (ImportError, OSError):  # the second: LLVM's own library is missing, or of another libc
        return False
    features = binding.get_host_cpu_features()
    return all(features.get(name, False) for name in _NEEDED)
