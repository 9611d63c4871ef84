"""Attention in plain torch: the same bits for a row in any company.

A row's maximum is exact in any order; P·V is summed span after span and the denominator tile after
tile, in the order of positions. Entries that a row does not see add exact zeros. All of it is
float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from foredraft.engine.attention_plan import TILE, Lying, SequencePlan, StepPlan, Summation, Tree
from foredraft.engine.kv import PagedKV
from foredraft.engine.model_config import ModelConfig
from foredraft.engine.row_tile import RowTile


class StepAttention:
    """The attention of one step; buffers and views are made once and used by every layer.

    Args:
        rows: rows of the result, padding included.
        tile: row tile of the small products.
        summation: how P·V is summed.
        like: a tensor of the model's activation dtype and device.
    """

    def __init__(
        self,
        plan: StepPlan,
        kv: PagedKV,
        shape: ModelConfig,
        rows: int,
        tile: RowTile,
        summation: Summation,
        like: Tensor,
    ) -> None:
        self._kv = kv
        self._out = like.new_zeros(rows, shape.heads * shape.head_dim)
        by_head = self._out.view(rows, shape.kv_heads, shape.group, shape.head_dim)
        self._sequences = [
            (one.rows, _SequenceAttention(one, shape, tile, summation.span, by_head[one.rows]))
            for one in plan.sequences
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

    def __init__(
        self, plan: SequencePlan, shape: ModelConfig, tile: RowTile, span: int, out: Tensor
    ) -> None:
        self.lying = plan.lying
        self._heads, self._group, self._rows = shape.kv_heads, shape.group, len(out)
        self._padded, self._padded_group = tile.pad(self._rows * self._group), tile.pad(self._group)
        self._scale = shape.head_dim**-0.5
        self._whole, self._tree, self._span = plan.whole, plan.tree, span
        self._out = out.permute(1, 0, 2, 3)
        self._q = out.new_zeros(self._heads, self._padded, shape.head_dim, dtype=torch.float32)
        self._q_rows = self._by_row(self._q)
        self._mask = self._fold(plan.mask)
        if plan.tree is not None:
            self._order = self._fold(plan.tree.order).expand(self._heads, -1, -1)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, token_rows: Tensor) -> None:
        """Write the result of ``q`` [rows, kv_heads, group, head_dim] into the step's output."""
        torch.mul(q.permute(1, 0, 2, 3), self._scale, out=self._q_rows)
        scores = torch.bmm(self._q, keys.transpose(1, 2))
        scores[..., self._whole :].add_(self._mask)
        weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        if self._tree is None:
            out = self._by_row(_add_spans(None, weights, values, self._span))
            sums = _tile_sums(weights)
        else:
            out, sums = self._attend_tree(self._tree, weights, values, token_rows)
        torch.div(out, self._by_row(_in_turn(sums)), out=self._out)

    def _attend_tree(
        self, tree: Tree, weights: Tensor, values: Tensor, token_rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """P·V by row and the tile sums of P."""
        early, late = weights[..., : self._whole], weights[..., self._whole :]
        ordered = late.gather(-1, self._order)
        sums = torch.cat((_tile_sums(early), _tile_sums(ordered)), dim=-1)
        before = _add_spans(None, early, values, self._span) if self._whole else None
        if tree.values is not None:
            return self._add_gathered(before, ordered, token_rows, tree.values), sums
        first, *others = [late * part for part in tree.parts] or [late]
        near = values[:, self._whole :]
        out = add_product(before, first, near)
        for part in others:
            out = add_product(out, part, near)
        return self._by_row(out), sums

    def _add_gathered(
        self, before: Tensor | None, ordered: Tensor, token_rows: Tensor, index: Tensor
    ) -> Tensor:
        """``before`` plus every row's own weights @ its own values, in the order of positions."""
        values = token_rows.index_select(0, index).float()
        values = values.view(self._heads * self._rows, -1, token_rows.shape[-1])
        apart = None if before is None else self._apart(before)
        out = _add_spans(apart, self._apart(ordered), values, self._span)
        return out[:, : self._group].view(self._heads, self._rows, self._group, -1)

    def _fold(self, x: Tensor) -> Tensor:
        """[rows, n], the same for every head, to [1, padded, n]."""
        repeated = x.repeat_interleave(self._group, dim=0)
        return functional.pad(repeated, (0, 0, 0, self._padded - len(repeated)))[None]

    def _by_row(self, x: Tensor) -> Tensor:
        """[kv_heads, padded, n] as a view [kv_heads, rows, group, n]."""
        used = x[:, : self._rows * self._group]
        return used.view(self._heads, self._rows, self._group, x.shape[-1])

    def _apart(self, x: Tensor) -> Tensor:
        """[kv_heads, padded, n] to [kv_heads * rows, padded group, n]."""
        apart = self._by_row(x).reshape(self._heads * self._rows, self._group, x.shape[-1])
        return functional.pad(apart, (0, 0, 0, self._padded_group - self._group))


def _add_spans(before: Tensor | None, weights: Tensor, values: Tensor, span: int) -> Tensor:
    """``before`` plus weights @ values, span after span; values past the weights are ignored."""
    end = weights.shape[-1]
    first, *others = [slice(start, min(start + span, end)) for start in range(0, end, span)]
    total = add_product(before, weights[..., first], values[:, first])
    for part in others:
        total = add_product(total, weights[..., part], values[:, part])
    return total


def add_product(before: Tensor | None, weights: Tensor, values: Tensor) -> Tensor:
    """``before`` (overwritten) plus weights @ values."""
    return torch.bmm(weights, values) if before is None else before.baddbmm_(weights, values)


def _tile_sums(weights: Tensor) -> Tensor:
    """[.., entries] to [.., tiles]."""
    return weights.view(*weights.shape[:-1], -1, TILE).sum(-1)


def _in_turn(sums: Tensor) -> Tensor:
    """Sum of the last dimension, strictly from first to last: [.., 1]."""
    return sums.cumsum(-1)[..., -1:]
