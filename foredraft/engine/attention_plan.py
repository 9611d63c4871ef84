"""Which KV entries each row of a step attends to, as index tensors made once per step.

Context is cut into tiles of fixed positions. Whole tiles below a sequence's committed length
are gathered once and shared by all its rows; the last tiles are gathered for every row along
its own ancestors, so that each entry stands where plain decoding would have it. A row's sums
then run over the same tiles in the same order, alone or in a tree.
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
class SharedTiles:
    """Tiles that all rows of a sequence see.

    width: most rows of a sequence; shorter ones are filled up.
    index: rows of ``PagedKV.block_rows``, [planes * sequences * tiles * 4].
    mask: what is added to the scores, 0 or -inf: [sequences, 1 or width, tiles * TILE].
    source: the row that stands at each filled place, [sequences * width].
    place: the filled place of each row, [rows]. Both are None if the two agree.
    """

    sequences: int
    width: int
    index: Tensor
    mask: Tensor
    source: Tensor | None = None
    place: Tensor | None = None


@dataclass(frozen=True, slots=True)
class OwnTiles:
    """Tiles gathered for each row: index [planes * rows * tiles * TILE], mask [rows, entries]."""

    index: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Everything the attention of one step needs besides q, k and v."""

    rows: int
    positions: Tensor  # [rows]
    write: Tensor  # rows of PagedKV.token_rows in the order [rows, planes], flat
    shared: SharedTiles | None
    own: OwnTiles | None


def plan_step(batch: Sequence[SequenceRows], kv: PagedKV, device: torch.device) -> AttentionPlan:
    """Plan a step of roots and tree nodes."""
    starts = np.array([_first_own_tile(rows) for rows in batch], dtype=np.int64)
    counts = np.array([len(rows.tokens) for rows in batch], dtype=np.int64)
    positions = np.concatenate(
        [np.array([rows.context - 1 + len(path) for path in rows.paths]) for rows in batch]
    )
    own_slots = np.concatenate(
        [physical_slots(rows.blocks, np.array([p[-1] for p in rows.paths])) for rows in batch]
    )
    return AttentionPlan(
        rows=len(positions),
        positions=to_device(positions, device),
        write=to_device(kv.token_index(own_slots).T, device),
        shared=_shared_tiles(batch, starts, counts, kv, device),
        own=_own_tiles(batch, starts, counts, positions, kv, device),
    )


def plan_prefill(
    blocks: Sequence[int], start: int, count: int, kv: PagedKV, device: torch.device
) -> AttentionPlan:
    """Plan a chunk of prompt at positions start..start+count-1; ``start`` is on a tile's edge."""
    positions = np.arange(start, start + count, dtype=np.int64)
    tiles = -(-(start + count) // TILE)
    table = _tile_table(blocks, tiles)
    future = np.arange(tiles * TILE)[None, :] > positions[:, None]
    return AttentionPlan(
        rows=count,
        positions=to_device(positions, device),
        write=to_device(kv.token_index(physical_slots(blocks, positions)).T, device),
        shared=SharedTiles(
            sequences=1,
            width=count,
            index=to_device(kv.block_index(table), device),
            mask=_minus_infinity(future, device)[None],
        ),
        own=None,
    )


def _shared_tiles(
    batch: Sequence[SequenceRows],
    starts: np.ndarray,
    counts: np.ndarray,
    kv: PagedKV,
    device: torch.device,
) -> SharedTiles | None:
    tiles = int(starts.max())
    if tiles == 0:
        return None
    width = int(counts.max())
    table = np.stack(
        [
            _tile_table(rows.blocks[: s * _TILE_BLOCKS], tiles)
            for rows, s in zip(batch, starts, strict=True)
        ]
    )
    firsts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    source = np.minimum(firsts[:, None] + np.arange(width), counts.sum() - 1)
    place = np.concatenate([s * width + np.arange(n) for s, n in enumerate(counts)])
    missing = np.arange(tiles * TILE)[None, :] >= (starts * TILE)[:, None]
    return SharedTiles(
        sequences=len(batch),
        width=width,
        index=to_device(kv.block_index(table), device),
        mask=_minus_infinity(missing, device)[:, None],
        source=None if len(batch) == 1 else to_device(source, device),
        place=None if len(batch) == 1 else to_device(place, device),
    )


def _first_own_tile(rows: SequenceRows) -> int:
    """A lone row shares with nobody: gathering all of its tiles for itself saves a pass."""
    return 0 if len(rows.tokens) == 1 else rows.context // TILE


def _own_tiles(
    batch: Sequence[SequenceRows],
    starts: np.ndarray,
    counts: np.ndarray,
    positions: np.ndarray,
    kv: PagedKV,
    device: torch.device,
) -> OwnTiles:
    first = np.repeat(starts, counts) * TILE
    tiles = int(((positions - first) // TILE).max()) + 1
    slots = np.zeros((len(positions), tiles * TILE), dtype=np.int64)
    row = 0
    for rows, start in zip(batch, starts, strict=True):
        committed = list(range(int(start) * TILE, rows.context))
        for path in rows.paths:
            logical = np.array(committed + list(path), dtype=np.int64)
            slots[row, : len(logical)] = physical_slots(rows.blocks, logical)
            row += 1
    unseen = np.arange(tiles * TILE)[None, :] > (positions - first)[:, None]
    return OwnTiles(
        index=to_device(kv.token_index(slots), device),
        mask=_minus_infinity(unseen, device),
    )


def _tile_table(blocks: Sequence[int], tiles: int) -> np.ndarray:
    """Block table of ``tiles`` whole tiles, padded with the zero block: [tiles * 4]."""
    table = np.zeros(tiles * _TILE_BLOCKS, dtype=np.int64)
    used = min(len(blocks), len(table))
    table[:used] = blocks[:used]
    return table


def _minus_infinity(where: np.ndarray, device: torch.device) -> Tensor:
    mask = np.where(where, np.float32(-np.inf), np.float32(0.0))
    return torch.from_numpy(mask).to(device)
