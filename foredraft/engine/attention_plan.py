"""What the rows of a step attend to, as index tensors made once per step.

Positions are cut into spans of fixed places, and a row's P·V is summed span after span. The KV is
read as it lies: a mask hides what a row does not see. In a tree the newest slots do not stand in
the order of positions. Where the library adds products one after another (`Summation.serial`) that
does not matter, because hidden entries add exact zeros wherever they stand; only the denominators
are gathered into the order of positions. Where it does not, the last entries are gathered for
every row along its own ancestors, so that each stands where plain decoding would have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from foredraft.engine.kv import BLOCK, PagedKV, physical_slots, to_device

TILE = 64  # positions whose weights are summed at once, a multiple of BLOCK
SPAN = 2 * TILE  # positions of one product P·V where the library adds serially
REACH = SPAN + TILE  # widest product that is read as it lies


@dataclass(frozen=True, slots=True)
class Summation:
    """How this machine's library sums a product P·V over positions.

    serial: it adds one position after another, up to REACH of them, so that zeros anywhere
        between change no bits.
    """

    serial: bool

    @property
    def span(self) -> int:
        """Positions of one product."""
        return SPAN if self.serial else TILE


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
class Tree:
    """The last entries of rows whose slots are not in the order of positions.

    order: for every row its entries behind `SequencePlan.whole` in the order of positions, as
        numbers of entries of the mask; past its end an entry that no row sees: [rows, entries].
    parts: one 0/1 row over the entries of the mask per span of positions; empty if they all
        belong to one span.
    values: None if the entries are read as they lie; else they are gathered: the values in
        ``order`` as rows of ``PagedKV.token_rows``, [kv_heads * rows * entries].
    """

    order: Tensor
    parts: tuple[Tensor, ...]
    values: Tensor | None = None


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """What ``rows`` of the step (one sequence's) attend to.

    whole: slots that every row sees; whole spans, or whole tiles of rows in order.
    mask: added to the scores of the slots behind them, 0 or -inf: [rows, entries].
    tree: None if slots are positions.
    """

    rows: slice
    lying: Lying
    whole: int
    mask: Tensor
    tree: Tree | None = None


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


def plan_step(
    batch: Sequence[SequenceRows], kv: PagedKV, summation: Summation, device: torch.device
) -> StepPlan:
    """Plan a step of roots and tree nodes."""
    positions, slots, sequences = [], [], []
    start = 0
    for rows in batch:
        place = slice(start, start + len(rows.tokens))
        own = np.array([path[-1] for path in rows.paths], dtype=np.int64)
        at = np.array([rows.context - 1 + len(path) for path in rows.paths], dtype=np.int64)
        if np.array_equal(own, at) and _is_chain(rows):
            sequences.append(_in_order(rows.blocks, place, at, kv, device))
        else:
            sequences.append(_branching(rows, place, at, kv, summation, device))
        positions.append(at)
        slots.append(physical_slots(rows.blocks, own))
        start = place.stop
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
    return StepPlan(
        positions=to_device(at, device),
        write=to_device(kv.token_index(physical_slots(blocks, at)).T, device),
        sequences=(_in_order(blocks, slice(0, count), at, kv, device),),
    )


def _is_chain(rows: SequenceRows) -> bool:
    """True if every row's path is the slots context, context + 1, .. in this order."""
    longest = max(rows.paths, key=len)
    return longest == tuple(range(rows.context, rows.context + len(longest))) and all(
        path == longest[: len(path)] for path in rows.paths
    )


def _in_order(
    blocks: Sequence[int], place: slice, at: np.ndarray, kv: PagedKV, device: torch.device
) -> SequencePlan:
    entries = _whole_tiles(int(at[-1]) + 1)
    whole = int(at[0]) // TILE * TILE
    future = np.arange(whole, entries) > at[:, None]
    return SequencePlan(
        rows=place,
        lying=_lying(blocks, entries, kv, device),
        whole=whole,
        mask=_minus_infinity(future, device),
    )


def _branching(
    rows: SequenceRows,
    place: slice,
    at: np.ndarray,
    kv: PagedKV,
    summation: Summation,
    device: torch.device,
) -> SequencePlan:
    whole = rows.context // summation.span * summation.span
    blank = max(max(path) for path in rows.paths) + 1  # behind all used slots: no row sees it
    slots = _whole_tiles(blank + 1)
    order = _by_position(rows, whole, int(at.max()) + 1, blank)
    seen = np.zeros((len(at), slots - whole), dtype=bool)
    np.put_along_axis(seen, order - whole, True, axis=1)
    seen[:, blank - whole] = False
    lies = summation.serial and slots - whole <= REACH and all(map(_ascends, rows.paths))
    return SequencePlan(
        rows=place,
        lying=_lying(rows.blocks, slots, kv, device),
        whole=whole,
        mask=_minus_infinity(~seen, device),
        tree=Tree(
            order=torch.from_numpy(order - whole).to(device),
            parts=_parts(order - whole, slots - whole, summation.span, device) if lies else (),
            values=None if lies else _values(rows, order, blank, kv, device),
        ),
    )


def _by_position(rows: SequenceRows, whole: int, end: int, blank: int) -> np.ndarray:
    """For every row its slots at positions whole..end-1, ``blank`` past its own: [rows, tiles]."""
    order = np.full((len(rows.paths), _whole_tiles(end - whole)), blank, dtype=np.int64)
    order[:, : rows.context - whole] = np.arange(whole, rows.context)
    for row, path in enumerate(rows.paths):
        order[row, rows.context - whole : rows.context - whole + len(path)] = path
    return order


def _ascends(path: tuple[int, ...]) -> bool:
    return all(above < below for above, below in pairwise(path))


def _parts(order: np.ndarray, entries: int, span: int, device: torch.device) -> tuple[Tensor, ...]:
    """Which of the mask's entries belong to which span of positions; nothing if all to one."""
    spans = -(-order.shape[1] // span)
    if spans == 1:
        return ()
    number = np.zeros(entries, dtype=np.int64)
    number[order] = np.arange(order.shape[1]) // span
    return tuple(
        torch.from_numpy((number == part).astype(np.float32)).to(device) for part in range(spans)
    )


def _values(
    rows: SequenceRows, order: np.ndarray, blank: int, kv: PagedKV, device: torch.device
) -> Tensor:
    """Where the values of ``order`` are; for what a row does not see, any number will do."""
    held = np.where(order == blank, rows.paths[0][-1], order)
    return to_device(kv.value_index(physical_slots(rows.blocks, held)), device)


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
