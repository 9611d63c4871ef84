"""Capturing what a device does in a CUDA graph, whatever else the process does meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def captured(pool: Any = None) -> Iterator[torch.cuda.CUDAGraph]:
    """What runs within becomes the graph; its memory is of ``pool``, if one is given.

    A graph that is destroyed by this thread would end the capture, and so would a call of another
    thread: so nothing is collected before it is over, and other threads do not count. As torch
    says, too, a process captures one graph at a time.
    """
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield graph
    finally:
        if collects:
            gc.enable()
