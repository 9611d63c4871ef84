"""What the rows of a step attend to, as index tensors made once per step.

Positions are cut into tiles of fixed places, and a row's sums run over its tiles in order. Rows
whose tokens stand in the KV in the order of their positions (plain decoding, prefill, a chain of
guesses) read it as it lies. In a tree the whole tiles below the committed length are read as they
lie too; the last tiles are gathered for every row along its own ancestors, so that each entry
stands where plain decoding would have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foredraft.engine.kv import BLOCK, PagedKV, physical_slots, to_device

TILE = 64  # positions per tile, a multiple of BLOCK
_TILE_BLOCKS = TILE // BLOCK


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """New rows of one sequence.

    blocks: block table; logical slot i lives in ``blocks[i // BLOCK]``.
    context: committed entries; slot i holds position i for i < context.
    tokens: one per row, parents before children.
    paths: per row, the logical slots of positions context..position, its own slot last.
        Ancestors may be resident already or rows of this very step.
    """

    blocks: Sequence[int]
    context: int
    tokens: Sequence[int]
    paths: Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Lying:
    """Where a sequence's first ``slots`` logical slots (whole tiles) are.

    first: the physical slot of the first, where all lie in one piece.
    index: rows of ``PagedKV.block_rows``, [planes * slots / BLOCK], where they do not.
    """

    slots: int
    first: int = 0
    index: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Branches:
    """The last tiles of the rows of a tree, in the order of positions.

    slots: logical slots, [rows, entries].
    values: the values of these slots as rows of ``PagedKV.token_rows``,
        [kv_heads * rows * entries].
    """

    slots: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """What ``rows`` of the step (one sequence's) attend to.

    mask: what is added to the scores of the last entries, 0 or -inf: [rows, entries].
    branches: None if all entries are read as they lie, and the mask covers them all; else the
        tiles behind the first ``whole`` entries, which every row sees.
    """

    rows: slice
    lying: Lying
    mask: Tensor
    whole: int = 0
    branches: Branches | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything the attention of one step needs besides q, k and v.

    write: rows of ``PagedKV.token_rows`` in the order [rows, planes], flat.
    """

    positions: Tensor
    write: Tensor
    sequences: tuple[SequencePlan, ...]

    @property
    def rows(self) -> int:
        return len(self.positions)


def plan_step(batch: Sequence[SequenceRows], kv: PagedKV, device: torch.device) -> StepPlan:
    """Plan a step of roots and tree nodes."""
    positions, slots, sequences = [], [], []
    start = 0
    for rows in batch:
        end = start + len(rows.tokens)
        own = np.array([path[-1] for path in rows.paths], dtype=np.int64)
        at = np.array([rows.context - 1 + len(path) for path in rows.paths], dtype=np.int64)
        make = _in_order if np.array_equal(own, at) and _is_chain(rows) else _branching
        sequences.append(make(rows, slice(start, end), at, kv, device))
        positions.append(at)
        slots.append(physical_slots(rows.blocks, own))
        start = end
    return StepPlan(
        positions=to_device(np.concatenate(positions), device),
        write=to_device(kv.token_index(np.concatenate(slots)).T, device),
        sequences=tuple(sequences),
    )


def plan_prefill(
    blocks: Sequence[int], start: int, count: int, kv: PagedKV, device: torch.device
) -> StepPlan:
    """Plan a chunk of prompt at positions start..start+count-1."""
    at = np.arange(start, start + count, dtype=np.int64)
    rows = SequenceRows(blocks, start, (), ())
    return StepPlan(
        positions=to_device(at, device),
        write=to_device(kv.token_index(physical_slots(blocks, at)).T, device),
        sequences=(_in_order(rows, slice(0, count), at, kv, device),),
    )


def _is_chain(rows: SequenceRows) -> bool:
    """True if every row's path is the slots context, context + 1, .. in this order."""
    longest = max(rows.paths, key=len)
    return longest == tuple(range(rows.context, rows.context + len(longest))) and all(
        path == longest[: len(path)] for path in rows.paths
    )


def _in_order(
    rows: SequenceRows, place: slice, at: np.ndarray, kv: PagedKV, device: torch.device
) -> SequencePlan:
    entries = _whole_tiles(int(at[-1]) + 1)
    future = np.arange(entries) > at[:, None]
    return SequencePlan(
        rows=place,
        lying=_lying(rows.blocks, entries, kv, device),
        mask=_minus_infinity(future, device),
    )


def _branching(
    rows: SequenceRows, place: slice, at: np.ndarray, kv: PagedKV, device: torch.device
) -> SequencePlan:
    whole = rows.context // TILE * TILE
    entries = _whole_tiles(int(at.max()) + 1 - whole)
    committed = np.arange(whole, rows.context, dtype=np.int64)
    slots = np.zeros((len(at), entries), dtype=np.int64)
    slots[:, : len(committed)] = committed
    for row, path in enumerate(rows.paths):
        slots[row, len(committed) : len(committed) + len(path)] = path
    unseen = np.arange(entries) > (at - whole)[:, None]
    last = max(max(path) for path in rows.paths)
    return SequencePlan(
        rows=place,
        lying=_lying(rows.blocks, _whole_tiles(last + 1), kv, device),
        mask=_minus_infinity(unseen, device),
        whole=whole,
        branches=Branches(
            slots=torch.from_numpy(slots).to(device),
            values=to_device(kv.value_index(physical_slots(rows.blocks, slots)), device),
        ),
    )


def _lying(blocks: Sequence[int], slots: int, kv: PagedKV, device: torch.device) -> Lying:
    table = np.zeros(slots // BLOCK, dtype=np.int64)
    used = np.asarray(blocks[: len(table)], dtype=np.int64)
    if len(used) == len(table) and np.array_equal(used, np.arange(used[0], used[0] + len(used))):
        return Lying(slots, first=int(used[0]) * BLOCK)
    # The rest of the last tile is the zero block: a neighbour's memory is never read.
    table[: len(used)] = used
    return Lying(slots, index=to_device(kv.block_index(table), device))


def _whole_tiles(entries: int) -> int:
    return -(-entries // TILE) * TILE


def _minus_infinity(where: np.ndarray, device: torch.device) -> Tensor:
    mask = np.where(where, np.float32(-np.inf), np.float32(0.0))
    return torch.from_numpy(mask).to(device)
