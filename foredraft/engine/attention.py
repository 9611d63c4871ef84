"""Tile attention in plain torch: the same bits for a row in any company.

A row's maximum is exact in any order; the denominator and P·V are summed tile after tile, in the
order of positions. Tiles that a row does not see add exact zeros. All of it is float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from foredraft.engine.attention_plan import TILE, Branches, Lying, SequencePlan, StepPlan
from foredraft.engine.kv import PagedKV
from foredraft.engine.model_config import ModelConfig
from foredraft.engine.row_tile import RowTile


class TileAttention:
    """The attention of one step; buffers and views are made once and used by every layer.

    Args:
        rows: rows of the result, padding included.
        tile: row tile of the small products.
        like: a tensor of the model's activation dtype and device.
    """

    def __init__(
        self,
        plan: StepPlan,
        kv: PagedKV,
        shape: ModelConfig,
        rows: int,
        tile: RowTile,
        like: Tensor,
    ) -> None:
        self._kv = kv
        self._out = like.new_zeros(rows, shape.heads * shape.head_dim)
        by_head = self._out.view(rows, shape.kv_heads, shape.group, shape.head_dim)
        self._sequences = [
            (sequence.rows, _SequenceAttention(sequence, shape, tile, by_head[sequence.rows]))
            for sequence in plan.sequences
        ]

    def __call__(self, q: Tensor, layer: int) -> Tensor:
        """Attend in one layer, whose entries of this step are written.

        Args:
            q: [rows, kv_heads, group, head_dim].

        Returns:
            [padded rows, heads * head_dim]; padding rows are zero.
        """
        for rows, attend in self._sequences:
            keys, values = _read(self._kv, layer, attend.lying)
            attend(q[rows], keys, values, self._kv.token_rows[layer])
        return self._out


def _read(kv: PagedKV, layer: int, lying: Lying) -> tuple[Tensor, Tensor]:
    """Keys and values [kv_heads, slots, head_dim]: views where they lie in one piece."""
    if lying.index is None:
        entries = kv.slot_rows[layer].narrow(2, lying.first, lying.slots)
    else:
        gathered = kv.block_rows[layer].index_select(0, lying.index)
        entries = gathered.view(2, -1, lying.slots, kv.head_dim)
    keys, values = entries.float().unbind()
    return keys, values


class _SequenceAttention:
    """The new rows of one sequence; products are [kv_heads, padded rows * group, ..]."""

    def __init__(self, plan: SequencePlan, shape: ModelConfig, tile: RowTile, out: Tensor) -> None:
        self.lying = plan.lying
        self._heads, self._group, self._rows = shape.kv_heads, shape.group, len(out)
        self._padded, self._padded_group = tile.pad(self._rows * self._group), tile.pad(self._group)
        self._scale = shape.head_dim**-0.5
        self._whole, self._branches = plan.whole, plan.branches
        self._out = out.permute(1, 0, 2, 3)
        self._q = out.new_zeros(self._heads, self._padded, shape.head_dim, dtype=torch.float32)
        self._q_rows = self._by_row(self._q)
        self._mask = self._fold(plan.mask)
        if plan.branches is not None:
            self._slots = self._fold(plan.branches.slots).expand(self._heads, -1, -1)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, token_rows: Tensor) -> None:
        """Write the result of ``q`` [rows, kv_heads, group, head_dim] into the step's output."""
        torch.mul(q.permute(1, 0, 2, 3), self._scale, out=self._q_rows)
        if self._branches is None:
            scores = torch.baddbmm(self._mask, self._q, keys.transpose(1, 2))
            weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
            out = _add_tiles(None, weights, values).div_(_in_turn(_tile_sums(weights)))
            self._out.copy_(self._by_row(out))
        else:
            self._attend_tree(self._branches, keys, values, token_rows)

    def _attend_tree(
        self, branches: Branches, keys: Tensor, values: Tensor, token_rows: Tensor
    ) -> None:
        scores = torch.bmm(self._q, keys.transpose(1, 2))
        late = scores.gather(-1, self._slots).add_(self._mask)
        late_values = token_rows.index_select(0, branches.values).float()
        late_values = late_values.view(self._heads * self._rows, -1, values.shape[-1])
        top = late.amax(-1, keepdim=True)
        if self._whole:
            early = scores[..., : self._whole]
            top = torch.maximum(top, early.amax(-1, keepdim=True))
            early = early.sub(top).exp_()
            before = self._by_row(_add_tiles(None, early, values))
            late = late.sub_(top).exp_()
            sums = torch.cat((_tile_sums(early), _tile_sums(late)), dim=-1)
            out = _add_tiles(self._apart(before), self._apart(self._by_row(late)), late_values)
        else:
            late = late.sub_(top).exp_()
            sums = _tile_sums(late)
            out = _add_tiles(None, self._apart(self._by_row(late)), late_values)
        out = out[:, : self._group].view(self._heads, self._rows, self._group, -1)
        torch.div(out, self._by_row(_in_turn(sums)), out=self._out)

    def _fold(self, x: Tensor) -> Tensor:
        """[rows, n], the same for every head, to [1, padded, n]."""
        repeated = x.repeat_interleave(self._group, dim=0)
        return functional.pad(repeated, (0, 0, 0, self._padded - len(repeated)))[None]

    def _by_row(self, x: Tensor) -> Tensor:
        """[kv_heads, padded, n] as a view [kv_heads, rows, group, n]."""
        used = x[:, : self._rows * self._group]
        return used.view(self._heads, self._rows, self._group, x.shape[-1])

    def _apart(self, x: Tensor) -> Tensor:
        """[kv_heads, rows, group, n] to [kv_heads * rows, padded group, n]."""
        apart = x.reshape(self._heads * self._rows, self._group, x.shape[-1])
        return functional.pad(apart, (0, 0, 0, self._padded_group - self._group))


def _add_tiles(before: Tensor | None, weights: Tensor, values: Tensor) -> Tensor:
    """``before`` plus weights @ values, tile after tile; values past the weights are ignored."""
    first = weights[..., :TILE], values[:, :TILE]
    total = torch.bmm(*first) if before is None else torch.baddbmm(before, *first)
    for start in range(TILE, weights.shape[-1], TILE):
        tile = slice(start, start + TILE)
        total.baddbmm_(weights[..., tile], values[:, tile])
    return total


def _tile_sums(weights: Tensor) -> Tensor:
    """[.., entries] to [.., tiles]."""
    return weights.view(*weights.shape[:-1], -1, TILE).sum(-1)


def _in_turn(sums: Tensor) -> Tensor:
    """Sum of the last dimension, strictly from first to last: [.., 1]."""
    return sums.cumsum(-1)[..., -1:]
