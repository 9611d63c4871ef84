"""The probe finds a tile that holds, and says so when there is none."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.row_tile import (
    FIXED_LAUNCH,
    LARGEST,
    RowTile,
    probe_row_tile,
    sums_serially,
)


def test_finds_the_smallest_tile_that_holds() -> None:
    def product(x: Tensor) -> Tensor:
        odd = x.shape[0] % 6 in (1, 2)
        return x + 1e-3 if odd else x.clone()

    assert probe_row_tile(product, torch.rand(256, 8)) == RowTile(3)


def test_an_independent_product_needs_no_padding() -> None:
    assert probe_row_tile(lambda x: x * 2, torch.rand(256, 8)) == RowTile(1)


def test_falls_back_to_launches_of_one_size() -> None:
    def product(x: Tensor) -> Tensor:
        return x * (1 + x.shape[0] * 1e-3)

    assert probe_row_tile(product, torch.rand(256, 8)) == RowTile(FIXED_LAUNCH, FIXED_LAUNCH)


def test_joined_tiles_suit_both() -> None:
    joined = RowTile(3).join(RowTile(4, 64))
    assert (joined.rows, joined.limit) == (12, 64)
    assert [RowTile(3).pad(count) for count in (1, 3, 4)] == [3, 3, 6]


def test_tells_one_accumulator_from_two() -> None:
    def serial(before: Tensor | None, weights: Tensor, values: Tensor) -> Tensor:
        total = torch.zeros(1) if before is None else before
        for entry in range(weights.shape[-1]):
            total = total + weights[..., entry, None] * values[:, None, entry]
        return total

    def halves(before: Tensor | None, weights: Tensor, values: Tensor) -> Tensor:
        middle = weights.shape[-1] // 2
        first = serial(before, weights[..., :middle], values[:, :middle])
        return first + serial(None, weights[..., middle:], values[:, middle:])

    weights, values = torch.rand(2, LARGEST, 48), torch.rand(2, 48, 8)
    assert sums_serially(serial, weights, values, RowTile(4))
    assert not sums_serially(halves, weights, values, RowTile(4))
