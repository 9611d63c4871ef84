"""Whether kernels run on this processor."""

from __future__ import annotations

import importlib.util
import platform
import sys
from functools import cache

_NEEDED = ("avx2", "fma", "f16c")


@cache
def available() -> bool:
    """True on Linux on x86-64 with AVX2, where llvmlite is installed."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    if importlib.util.find_spec("llvmlite") is None:
        return False
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return all(features.get(name, False) for name in _NEEDED)
