"""Times steps of several widths at start-up; this also warms the model."""

from __future__ import annotations

import math
import time

from foredraft.engine.runner import Runner, SequenceRows
from foredraft.engine.sampling import choose
from foredraft.policy.cost import StepCost

# Close together where products are quick: libraries work in tiles of a few rows, and the first
# row of a new tile costs as much as all of them.
_WIDTHS = (1, 2, 3, 4, 6, 7, 9, 12, 13, 18, 24, 32)
_CONTEXT = 128
_ROUNDS, _ENOUGH_SECONDS = 5, 2.0  # a slow model gets fewer rounds


def profile_steps(runner: Runner) -> StepCost:
    """Cost of a greedy step by its number of rows.

    All widths are timed in turns and the quickest time of each counts: a moment in which the
    machine is busy with something else must not make one width look dear.
    """
    context = min(_CONTEXT, runner.info.context_length // 2)
    blocks = runner.kv.allocate(runner.kv.blocks_for(context + max(_WIDTHS)))
    for start in range(0, context, runner.chunk):
        runner.prefill(blocks, [0] * min(runner.chunk, context - start), start)
    widths = [width for width in _WIDTHS if context + width <= runner.info.context_length]
    quickest = [math.inf] * len(widths)
    started = time.perf_counter()
    for _ in range(_ROUNDS):
        times = [_time_step(runner, blocks, context, width) for width in widths]
        quickest = list(map(min, quickest, times))
        if time.perf_counter() - started > _ENOUGH_SECONDS:
            break
    runner.kv.free(blocks)
    return StepCost.from_profile(zip(widths, quickest, strict=True))


def _time_step(runner: Runner, blocks: list[int], context: int, width: int) -> float:
    """Milliseconds of a step of one sequence with ``width`` rows in a chain."""
    paths = [tuple(range(context, context + row + 1)) for row in range(width)]
    rows = [SequenceRows(blocks, context, [0] * width, paths)]
    started = time.perf_counter()
    choose(runner.forward(rows), [None] * width, runner.info.eos_token_ids)
    return (time.perf_counter() - started) * 1000
