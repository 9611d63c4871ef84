"""The probe finds a tile that holds, and says so when there is none."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.row_tile import FIXED_LAUNCH, RowTile, probe_row_tile


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
