"""Attention over memory in which every sequence lies in one piece.

Both kinds write the entries of new rows and let the library do the rest; queries come scaled.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draft_service.engine.memory import SlotMemory
from draft_service.engine.pass_input import PassInput
from draft_service.engine.rows import Piece, Rows
from draft_service.engine.transfer import to_device


class Attention(Protocol):
    """The attention of one pass."""

    def write(self, layer: int, entries: Tensor) -> None:
        """Put keys and values of the new rows in place: [rows, 2 * kv_heads, head_dim]."""

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        """For q [rows, heads, head_dim], once they are written: [rows, heads * head_dim]."""


class PieceAttention:
    """Sequence after sequence, each read as it lies: shapes follow the texts."""

    def __init__(self, memory: SlotMemory, rows: Rows, group: int) -> None:
        self._memory = memory
        self._slots = to_device(rows.slots, memory.entries.device)
        self._pieces = [(piece, _mask(rows, piece, group, memory.entries)) for piece in rows.pieces]

    def write(self, layer: int, entries: Tensor) -> None:
        _write(self._memory.layers[layer], self._slots, entries)

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        keys, values = self._memory.planes[layer]
        found = [
            _attend(
                q[piece.rows],
                keys.narrow(2, piece.first, piece.used),
                values.narrow(2, piece.first, piece.used),
                mask,
            )
            for piece, mask in self._pieces
        ]
        return found[0] if len(found) == 1 else torch.cat(found)


class GatheredAttention:
    """All rows at once, each with its own copy of what it may see: shapes are fixed.

    ``numbers``: 0, 1, .. for as many slots as are copied; none behind them may be seen.
    """

    def __init__(self, memory: SlotMemory, given: PassInput, numbers: Tensor) -> None:
        self._layers = memory.layers
        self._slots = given.slot
        visible = (numbers < given.seen[:, None]).scatter_(1, given.lines, True)
        # A neighbour's memory is never read: what it holds need not be finite.
        self._index = (numbers.minimum(given.last[:, None]) + given.first[:, None]).view(-1)
        self._mask = visible.to(memory.entries.dtype).log_()[:, None, None]  # 0 or -inf

    def write(self, layer: int, entries: Tensor) -> None:
        _write(self._layers[layer], self._slots, entries)

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        rows, _, head_dim = q.shape
        gathered = self._layers[layer].index_select(2, self._index)
        kv_heads = gathered.shape[1]
        keys, values = gathered.view(2, kv_heads, rows, -1, head_dim).transpose(1, 2).unbind()
        by_head = q.view(rows, kv_heads, -1, head_dim)
        mask = self._mask.expand(-1, kv_heads, by_head.shape[2], -1)
        found = scaled_dot_product_attention(by_head, keys, values, mask, scale=1.0)
        return found.reshape(rows, -1)


def _write(memory: Tensor, slots: Tensor, entries: Tensor) -> None:
    rows, _, head_dim = entries.shape
    memory.index_copy_(2, slots, entries.view(rows, 2, -1, head_dim).permute(1, 2, 0, 3))


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """For q [rows, heads, head_dim] and what one sequence has: [rows, heads * head_dim]."""
    (rows, _, head_dim), kv_heads = q.shape, keys.shape[1]
    by_head = q.view(rows, kv_heads, -1, head_dim).transpose(0, 1)
    by_head = by_head.reshape(1, kv_heads, -1, head_dim)
    found = scaled_dot_product_attention(by_head, keys, values, mask, scale=1.0)
    return found.view(kv_heads, rows, -1, head_dim).transpose(0, 1).reshape(rows, -1)


def _mask(rows: Rows, piece: Piece, group: int, like: Tensor) -> Tensor | None:
    """0 or -inf for each query head of a row: [rows * group, used]; None if all is seen."""
    seen, lines = rows.seen[piece.rows], rows.lines[piece.rows]
    if min(seen) == piece.used:
        return None
    visible = np.arange(piece.used) < np.array(seen)[:, None]
    for row, line in zip(visible, lines, strict=True):
        row[list(line)] = True
    mask = torch.from_numpy(np.where(visible, np.float32(0.0), np.float32(-np.inf)))
    return mask.repeat_interleave(group, dim=0).to(like.device, like.dtype)
