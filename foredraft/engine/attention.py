"""Tile attention in plain torch: the same bits for a row in any company.

Scores are taken tile-wide, the row's maximum is exact in any order, and both the denominator
and P·V are summed tile after tile. Tiles that a row does not see add exact zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from foredraft.engine.attention_plan import TILE, AttentionPlan, OwnTiles, SharedTiles
from foredraft.engine.row_tile import RowTile


def tile_attention(
    q: Tensor, token_rows: Tensor, block_rows: Tensor, plan: AttentionPlan, tile: RowTile
) -> Tensor:
    """Attend.

    Args:
        q: [rows, kv_heads, group, head_dim], scaled.
        token_rows, block_rows: one layer of the paged KV, this step's entries written.
        tile: row tile of the small products.

    Returns:
        [rows, kv_heads * group * head_dim].
    """
    heads = q.shape[1]
    parts = [_Part.shared(q, block_rows, plan.shared, tile)] if plan.shared else []
    parts += [_Part.own(q, token_rows, plan.own, tile)] if plan.own else []
    top = parts[0].top()
    for part in parts[1:]:
        top = torch.maximum(top, part.top())
    out = q.new_zeros(heads, plan.rows, q.shape[2], q.shape[3], dtype=torch.float32)
    sums = []
    for part in parts:
        out, tile_sums = part.accumulate(out, top)
        sums.append(tile_sums)
    total = torch.cat(sums, dim=-1).cumsum(-1)[..., -1:]
    return (out / total).permute(1, 0, 2, 3).reshape(plan.rows, -1).to(q.dtype)


class _Part:
    """Scores of all rows against one group of tiles, batched over (kv head, unit).

    A unit is a sequence with all its rows (shared tiles) or one row (own tiles).
    scores: [heads * units, padded, entries] float32; ``place`` and ``source`` translate between
    rows and padded places, None where they agree.
    """

    def __init__(
        self,
        q: Tensor,
        keys_values: Tensor,
        units: int,
        mask: Tensor | None,
        tile: RowTile,
        place: Tensor | None,
        source: Tensor | None,
    ) -> None:
        _, self.heads, self.group, dim = q.shape
        self.units, self.place, self.source = units, place, source
        spread = q if source is None else q.index_select(0, source)
        self.width = spread.shape[0] // units
        self.padded = tile.pad(self.width * self.group)
        keys, values = keys_values.view(2, self.heads * units, -1, dim)
        folded = self._fold(spread.permute(1, 0, 2, 3))
        scores = torch.bmm(folded, keys.transpose(1, 2)).float()
        if mask is not None:
            self._unfold(scores).add_(mask)
        self.scores, self.values = scores, values

    @classmethod
    def shared(cls, q: Tensor, block_rows: Tensor, tiles: SharedTiles, tile: RowTile) -> _Part:
        gathered = block_rows.index_select(0, tiles.index)
        source = None if tiles.place is None else tiles.source
        return cls(q, gathered, tiles.sequences, tiles.mask, tile, tiles.place, source)

    @classmethod
    def own(cls, q: Tensor, token_rows: Tensor, tiles: OwnTiles, tile: RowTile) -> _Part:
        gathered = token_rows.index_select(0, tiles.index)
        mask = tiles.mask[None, :, None, None]
        return cls(q, gathered, q.shape[0], mask, tile, None, None)

    def top(self) -> Tensor:
        """Largest score of each row and head: [heads, rows, group, 1]."""
        return self._to_rows(self._unfold(self.scores).amax(-1, keepdim=True))

    def accumulate(self, out: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        """Add this part's tiles to ``out``; returns it and the tiles' sums [.., tiles]."""
        highest = self._fold(self._from_rows(top))
        weights = self.scores.sub_(highest).exp_()
        total = self._fold(self._from_rows(out))
        for start in range(0, weights.shape[-1], TILE):
            probabilities = weights[..., start : start + TILE].to(self.values.dtype)
            values = self.values[:, start : start + TILE]
            total = _add_product(total, probabilities, values)
        tile_sums = weights.unflatten(-1, (-1, TILE)).sum(-1)
        return self._to_rows(self._unfold(total)), self._to_rows(self._unfold(tile_sums))

    def _fold(self, x: Tensor) -> Tensor:
        """[heads, units * width, group, n] to [heads * units, padded, n]."""
        folded = x.reshape(self.heads * self.units, self.width * self.group, x.shape[-1])
        return functional.pad(folded, (0, 0, 0, self.padded - folded.shape[1]))

    def _unfold(self, x: Tensor) -> Tensor:
        """[heads * units, padded, n] to a view [heads, units, width, group, n]."""
        shape = (self.heads, self.units, self.width, self.group, x.shape[-1])
        view: Tensor = x.unflatten(0, shape[:2])[:, :, : self.width * self.group].view(shape)
        return view

    def _to_rows(self, x: Tensor) -> Tensor:
        """[heads, units, width, group, n] to [heads, rows, group, n]."""
        flat = x.flatten(1, 2)
        return flat if self.place is None else flat.index_select(1, self.place)

    def _from_rows(self, x: Tensor) -> Tensor:
        """[heads, rows, group, n] to [heads, units * width, group, n]."""
        return x if self.source is None else x.index_select(1, self.source)


def _add_product(total: Tensor, probabilities: Tensor, values: Tensor) -> Tensor:
    """total + probabilities @ values, summed in float32."""
    if values.dtype == torch.float32:
        return torch.baddbmm(total, probabilities, values)
    return total + torch.bmm(probabilities, values).float()
