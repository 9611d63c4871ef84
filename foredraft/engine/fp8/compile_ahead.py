"""Kernels compiled before they are launched, many at a time.

Triton compiles a kernel where it is first launched, one after another, each in up to some seconds
and nearly all of that outside of Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from triton import AsyncCompileMode, JITFunction

_MOST_THREADS = 16


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Inside, launches of kernels compile and launch nothing; at the end all are compiled.

    For one thread at a time; others must not launch any kernels meanwhile.
    """
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **kwargs)

    threads = min(os.cpu_count() or 1, _MOST_THREADS)
    JITFunction.run = compile_only
    try:
        with ThreadPoolExecutor(threads) as pool, AsyncCompileMode(pool):
            yield
    finally:
        JITFunction.run = launch
