"""How many rows a product must be padded to so that a row never feels its neighbours.

Matrix libraries pick another kernel, and so another order of additions, for other row counts.
On one machine most of them agree from a certain tile on: we measure that tile instead of
trusting a table, because it depends on the library, its threads and the processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LARGEST = 256  # rows up to which every multiple of the tile is tried
FIXED_LAUNCH = 64


@dataclass(frozen=True, slots=True)
class RowTile:
    """Rows are padded to a multiple of ``rows``; a launch takes at most ``limit`` of them."""

    rows: int
    limit: int | None = None

    def pad(self, count: int) -> int:
        return -(-count // self.rows) * self.rows

    def join(self, other: RowTile) -> RowTile:
        """A tile that suits both."""
        limits = [limit for limit in (self.limit, other.limit) if limit is not None]
        return RowTile(math.lcm(self.rows, other.rows), min(limits, default=None))


def probe_row_tile(product: Callable[[Tensor], Tensor], rows: Tensor) -> RowTile:
    """Find the smallest tile at which ``product`` gives a row the same bits in any batch.

    Args:
        product: maps [..., n, k] to [..., n, m], row by row.
        rows: [..., at least LARGEST, k] sample rows.

    Returns:
        The tile, or launches of a fixed size where no tile works.
    """
    for tile in _CANDIDATES:
        if _is_invariant(product, rows, tile):
            return RowTile(tile)
    return RowTile(FIXED_LAUNCH, FIXED_LAUNCH)


def sums_serially(
    add: Callable[[Tensor | None, Tensor, Tensor], Tensor],
    weights: Tensor,
    values: Tensor,
    tile: RowTile,
) -> bool:
    """True if a product adds one entry after another, in one accumulator.

    Then zeros may stand anywhere between the entries, and a product of fewer entries has the same
    bits as a wider one with zeros. Tried for several numbers of rows and random places.

    Args:
        add: maps (before, weights, values) to before + weights @ values; before may be None.
        weights: [heads, LARGEST, width].
        values: [heads, width, n].
    """
    random = torch.Generator().manual_seed(0)
    width = weights.shape[-1]
    for count in range(tile.rows, LARGEST + 1, 5 * tile.rows):
        rows = weights[:, :count]
        for kept in (width // 3, width // 2, 2 * width // 3):
            places = torch.randperm(width, generator=random)[:kept].sort().values.to(rows.device)
            near = rows[..., :kept].contiguous(), values[:, places]
            wide = torch.zeros_like(rows).index_copy_(2, places, near[0]), values
            for before in (None, values[:, :1].expand(-1, count, -1)):
                kinds = [add(None if before is None else before.clone(), *x) for x in (near, wide)]
                if not torch.equal(*kinds):
                    return False
    return True


def _is_invariant(product: Callable[[Tensor], Tensor], rows: Tensor, tile: int) -> bool:
    alone = torch.cat(
        [
            product(rows[..., start : start + tile, :].contiguous())
            for start in range(0, LARGEST - LARGEST % tile, tile)
        ],
        dim=-2,
    )
    return all(
        torch.equal(product(rows[..., :count, :].contiguous()), alone[..., :count, :])
        for count in range(tile, alone.shape[-2] + 1, tile)
    )
