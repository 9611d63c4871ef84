"""How long a cell's steps take, and for how much of that the device works."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from bench.step.cell import StepBench

_WARM = 5
_ROUNDS = 5


def time_cell(bench: StepBench, steps: int) -> tuple[float, float]:
    """Milliseconds of a step, and those that its launches alone take.

    Both are medians of rounds of ``steps`` in a row. In the first the host tells the device of
    every step and reads the commits of the one before; in the second the device runs the same
    graph again and again. What the first has more, the device spends waiting or copying.
    """
    for _ in range(_WARM):
        bench.step.commits(bench.launch())
    whole = [_milliseconds(lambda: _run(bench, steps)) / steps for _ in range(_ROUNDS)]
    alone = [_milliseconds(lambda: _repeat(bench, steps)) / steps for _ in range(_ROUNDS)]
    return statistics.median(whole), statistics.median(alone)


def _run(bench: StepBench, steps: int) -> None:
    before = bench.launch()
    for _ in range(steps - 1):
        newest = bench.launch()
        bench.step.commits(before)
        before = newest
    bench.step.commits(before)


def _repeat(bench: StepBench, steps: int) -> None:
    for _ in range(steps):
        bench.step.again(bench.bucket)


def _milliseconds(run: Callable[[], None]) -> float:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    end.synchronize()
    elapsed: float = start.elapsed_time(end)
    return elapsed
