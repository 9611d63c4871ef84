"""The processor that kernels are compiled for, and the OpenMP library whose threads run them."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

_NEEDED = ("avx2", "fma", "f16c")
# Threads are the ones that torch computes with: a second pool would fight with it for the cores.
_OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


@cache
def available() -> bool:
    """True where these kernels run: Linux on x86-64 with AVX2, llvmlite, and torch's OpenMP."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    if importlib.util.find_spec("llvmlite") is None or _openmp() is None:
        return False
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return all(features.get(name, False) for name in _NEEDED)


def target_machine() -> Any:
    """LLVM's description of this processor; whatever compiles with it owns it."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    openmp = _openmp()
    for name in _OPENMP:
        address = ctypes.cast(getattr(openmp, name), ctypes.c_void_p).value
        binding.add_symbol(name, address)
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
    )


def _openmp() -> ctypes.CDLL | None:
    """The library that torch itself has loaded."""
    for name in ("libgomp.so.1", *_bundled()):
        try:
            library = ctypes.CDLL(name, mode=ctypes.RTLD_LOCAL | _NOLOAD)
        except OSError:
            continue
        return library if all(hasattr(library, needed) for needed in _OPENMP) else None
    return None


def _bundled() -> list[str]:
    """Wheels bring their own copy, under a name of their own."""
    home = Path(torch.__file__).parent
    places = (home / "lib", home.parent / "torch.libs")
    return [str(file) for place in places for file in sorted(place.glob("libgomp*.so*"))]


_NOLOAD = 0x4  # RTLD_NOLOAD of glibc: only what is loaded already
