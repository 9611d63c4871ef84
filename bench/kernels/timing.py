"""How long launches take on the GPU, with what they read coming from memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from bench.kernels.case import Prepared

# A graph holds at least so many launches, so that starting it does not show.
_LAUNCHES = 48


def time_launches(prepared: Prepared, rounds: int) -> tuple[dict[str, float], dict[str, str]]:
    """Median microseconds of one launch by name, and why some could not be launched.

    Each is captured in a CUDA graph that runs over all copies in turn; the graphs are replayed one
    after another, ``rounds`` times, so that a clock that drifts drifts for all.
    """
    graphs, faults = _graphs(prepared)
    spans: dict[str, list[float]] = {name: [] for name in graphs}
    launches = _turns(prepared.copies) * prepared.copies
    for turn in range(rounds + 1):
        for name, graph in graphs.items():
            span = _replay(graph) / launches
            if turn:  # the first round warms up
                spans[name].append(span)
    return {name: statistics.median(times) for name, times in spans.items()}, faults


def _turns(copies: int) -> int:
    return -(-_LAUNCHES // copies)


def _graphs(prepared: Prepared) -> tuple[dict[str, torch.cuda.CUDAGraph], dict[str, str]]:
    graphs, faults = {}, {}
    for name, launch in prepared.contestants.items():
        try:
            graphs[name] = _captured(launch, prepared.copies)
        # Whatever a library or a compiler says of a shape that it does not take: the others go on.
        except Exception as error:
            faults[name] = first_line(error)
    return graphs, faults


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _captured(launch: Callable[[int], object], copies: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            launch(0)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_turns(copies)):
            for copy in range(copies):
                launch(copy)
    return graph


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds * 1e3
