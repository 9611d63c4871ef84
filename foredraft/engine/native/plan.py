"""Where the rows of a step stand, what they see, and where their keys and values go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foredraft.engine.attention_plan import SequenceRows
from foredraft.engine.kv import physical_slots


@dataclass(frozen=True, slots=True)
class NativePlan:
    """Of all rows of a step.

    positions, slots: int64 [rows].
    index: int32, physical slots; ranges: int64 [rows, 2, 2], first place in ``index`` and number of
        the entries that a row shares with its sequence's others, and of its own, by position.
    longest: entries of the row that sees the most.
    """

    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    index: NDArray[np.int32]
    ranges: NDArray[np.int64]
    longest: int

    @property
    def rows(self) -> int:
        return len(self.positions)


def plan_step(batch: Sequence[SequenceRows]) -> NativePlan:
    """Plan a step of roots and tree nodes."""
    index, ranges, positions, slots = [], [], [], []
    end = 0
    for rows in batch:
        lengths = np.array([len(path) for path in rows.paths], dtype=np.int64)
        shared = physical_slots(rows.blocks, np.arange(rows.context, dtype=np.int64))
        own = physical_slots(rows.blocks, np.concatenate(rows.paths).astype(np.int64))
        after = np.cumsum(lengths)
        counts = np.full(len(lengths), rows.context)
        starts = np.full(len(lengths), end)
        first = end + rows.context + after - lengths
        ranges.append(np.stack((starts, counts, first, lengths), axis=1))
        positions.append(rows.context - 1 + lengths)
        slots.append(own[after - 1])
        index += [shared, own]
        end += len(shared) + len(own)
    return _plan(positions, slots, index, ranges)


def plan_prefill(blocks: Sequence[int], start: int, count: int) -> NativePlan:
    """Plan a chunk of prompt at positions start..start+count-1."""
    at = np.arange(start, start + count, dtype=np.int64)
    index = physical_slots(blocks, np.arange(start + count, dtype=np.int64))
    nothing = np.zeros_like(at)
    ranges = np.stack((nothing, at + 1, nothing, nothing), axis=1)
    return _plan([at], [index[start:]], [index], [ranges])


def _plan(
    positions: list[NDArray[np.int64]],
    slots: list[NDArray[np.int64]],
    index: list[NDArray[np.int64]],
    ranges: list[NDArray[np.int64]],
) -> NativePlan:
    seen = np.concatenate(ranges)
    return NativePlan(
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        index=np.concatenate(index).astype(np.int32),
        ranges=seen,
        longest=int((seen[:, 1] + seen[:, 3]).max()),
    )
