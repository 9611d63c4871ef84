"""Tile attention in plain torch: the same bits for a row in any company.

A row's maximum is exact in any order; the denominator and P·V are summed tile after tile, in the
order of positions. Tiles that a row does not see add exact zeros. All of it is float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from foredraft.engine.attention_plan import TILE, AttentionPlan, OwnTiles, SharedTiles
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
        self, plan: AttentionPlan, shape: ModelConfig, rows: int, tile: RowTile, like: Tensor
    ) -> None:
        self._scale = shape.head_dim**-0.5
        self._out = like.new_zeros(rows, shape.heads * shape.head_dim)
        by_head = self._out[: plan.rows].view(plan.rows, shape.kv_heads, shape.group, -1)
        self._out_rows = by_head.permute(1, 0, 2, 3)  # as the parts hold rows
        self._shared = _Part.shared(plan.shared, shape, tile) if plan.shared else None
        self._own = _Part.own(plan.own, plan.rows, shape, tile) if plan.own else None

    def __call__(self, q: Tensor, token_rows: Tensor, block_rows: Tensor) -> Tensor:
        """Attend in one layer, whose entries of this step are written.

        Args:
            q: [rows, kv_heads, group, head_dim].
            token_rows, block_rows: the layer's memory (see `PagedKV`).

        Returns:
            [padded rows, heads * head_dim]; padding rows are zero.
        """
        q = q.permute(1, 0, 2, 3)
        if self._shared is None and self._own is not None:
            self._attend_alone(self._own, q, token_rows)
        elif self._own is None and self._shared is not None:
            self._attend_alone(self._shared, q, block_rows)
        elif self._own is not None and self._shared is not None:
            self._attend_both(self._shared, self._own, q, token_rows, block_rows)
        return self._out

    def _attend_alone(self, part: _Part, q: Tensor, memory: Tensor) -> None:
        weights, values = part.scores(q, self._scale, memory)
        weights.sub_(weights.amax(-1, keepdim=True)).exp_()
        total = part.tile_sums(weights).cumsum(-1)[..., -1:]
        out = part.accumulate(weights, values, None).div_(total)
        self._out_rows.copy_(part.to_rows(out))

    def _attend_both(
        self, shared: _Part, own: _Part, q: Tensor, token_rows: Tensor, block_rows: Tensor
    ) -> None:
        early, early_values = shared.scores(q, self._scale, block_rows)
        late, late_values = own.scores(q, self._scale, token_rows)
        top = torch.maximum(
            shared.to_rows(early.amax(-1, keepdim=True)), own.to_rows(late.amax(-1, keepdim=True))
        )
        early.sub_(shared.from_rows(top)).exp_()
        late.sub_(own.from_rows(top)).exp_()
        tiles = (shared.to_rows(shared.tile_sums(early)), own.to_rows(own.tile_sums(late)))
        total = torch.cat(tiles, dim=-1).cumsum(-1)[..., -1:]
        out = shared.to_rows(shared.accumulate(early, early_values, None))
        out = own.to_rows(own.accumulate(late, late_values, own.from_rows(out)))
        torch.div(out, total, out=self._out_rows)


class _Part:
    """One group of tiles: all rows of a unit against the unit's entries, batched over heads.

    A unit is a sequence with all its rows (shared tiles) or one row (own tiles). Products have
    the shape [heads * units, padded, ..] with ``padded`` >= width * group rows each; ``to_rows``
    and ``from_rows`` translate to and from [heads, rows, group, ..].
    """

    def __init__(
        self,
        shape: ModelConfig,
        tile: RowTile,
        units: int,
        width: int,
        index: Tensor,
        mask: Tensor,
        source: Tensor | None = None,
        place: Tensor | None = None,
    ) -> None:
        self._heads, self._group = shape.kv_heads, shape.group
        self._units, self._width = units, width
        self._used = width * shape.group
        self._index, self._source, self._place = index, source, place
        padded = tile.pad(self._used)
        self._batch = shape.kv_heads * units
        self._q = mask.new_zeros(self._batch, padded, shape.head_dim)
        self._q_used = self._by_unit(self._q)
        self._mask = mask.expand(shape.kv_heads, -1, -1, -1).flatten(0, 1)
        if self._mask.shape[1] > 1:
            self._mask = functional.pad(self._mask, (0, 0, 0, padded - self._used))

    @classmethod
    def shared(cls, tiles: SharedTiles, shape: ModelConfig, tile: RowTile) -> _Part:
        mask = tiles.mask
        if mask.shape[1] > 1:
            mask = mask.repeat_interleave(shape.group, dim=1)
        return cls(
            shape, tile, tiles.sequences, tiles.width, tiles.index, mask, tiles.source, tiles.place
        )

    @classmethod
    def own(cls, tiles: OwnTiles, rows: int, shape: ModelConfig, tile: RowTile) -> _Part:
        return cls(shape, tile, rows, 1, tiles.index, tiles.mask[:, None])

    def scores(self, q: Tensor, scale: float, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Masked scores [batch, padded, entries] of q [heads, rows, group, dim], and the values."""
        spread = q if self._source is None else q.index_select(1, self._source)
        torch.mul(spread.view(self._q_used.shape), scale, out=self._q_used)
        entries = memory.index_select(0, self._index).float()
        keys, values = entries.view(2, self._batch, -1, q.shape[-1])
        return torch.baddbmm(self._mask, self._q, keys.transpose(1, 2)), values

    def tile_sums(self, weights: Tensor) -> Tensor:
        """[batch, padded, tiles]."""
        return weights.view(*weights.shape[:2], -1, TILE).sum(-1)

    def accumulate(self, weights: Tensor, values: Tensor, before: Tensor | None) -> Tensor:
        """``before`` plus P·V, tile after tile: [batch, padded, head_dim]."""
        first = weights[..., :TILE], values[:, :TILE]
        total = torch.bmm(*first) if before is None else torch.baddbmm(before, *first)
        for start in range(TILE, weights.shape[-1], TILE):
            tile = slice(start, start + TILE)
            total.baddbmm_(weights[..., tile], values[:, tile])
        return total

    def to_rows(self, x: Tensor) -> Tensor:
        """[batch, padded, n] to [heads, rows, group, n]."""
        rows = self._by_unit(x).flatten(1, 2)
        return rows if self._place is None else rows.index_select(1, self._place)

    def from_rows(self, x: Tensor) -> Tensor:
        """[heads, rows, group, n] to [batch, padded, n]."""
        if self._source is not None:
            x = x.index_select(1, self._source)
        folded = x.reshape(self._batch, self._used, x.shape[-1])
        return functional.pad(folded, (0, 0, 0, self._q.shape[1] - self._used))

    def _by_unit(self, x: Tensor) -> Tensor:
        """[batch, padded, n] as a view [heads, units, width, group, n]."""
        used = x.view(self._heads, self._units, -1, x.shape[-1])[:, :, : self._used]
        return used.view(self._heads, self._units, self._width, self._group, x.shape[-1])
