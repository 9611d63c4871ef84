"""Blocks hold the numbers of a GGUF file, and the nearest to any others."""

from __future__ import annotations

import pytest
import torch

from foredraft.engine.model_config import UnsupportedModel
from foredraft.engine.native.blocks import BLOCK, Blocks

TINIEST = 2.0**-24  # of float16, above 0


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_nearest_are_off_by_half_a_level_at_most() -> None:
    sizes = torch.logspace(-8, 5, 50)[:, None]  # from less than float16 has to more
    weight = random(50, 3 * BLOCK) * sizes
    made = Blocks.nearest(weight)
    assert made.bits == 8 and made.shape == (50, 96) and made.scales.shape == (50, 3)
    scales = made.scales.float().repeat_interleave(BLOCK, dim=1)
    assert ((made.floats() - weight).abs() <= scales * 0.5001).all()
    most = weight.view(50, 3, BLOCK).abs().amax(dim=2) / 127
    assert (made.scales.float() >= most).all()
    assert (made.scales.float() <= most * (1 + 2.0**-10) + TINIEST).all()
    assert made.levels.abs().max() == 127


def test_what_is_in_blocks_already_stays() -> None:
    made = Blocks.nearest(random(8, 64))
    again = Blocks.nearest(made.floats())
    assert made.equals(again.floats()) and torch.equal(made.levels, again.levels)
    assert not made.equals(made.floats() * 1.01) and not made.equals(made.floats()[:4])


def test_zeros_stay_zeros_and_a_large_weight_is_kept() -> None:
    weight = torch.zeros(2, 64)
    weight[0, 3], weight[1, 40] = 1e6, 1e-12
    floats = Blocks.nearest(weight).floats()
    assert floats[0, 3] == pytest.approx(1e6, rel=1e-3)
    assert floats.count_nonzero() == 1


@pytest.mark.parametrize("wrong", [torch.inf, torch.nan, 1e7], ids=str)
def test_what_no_block_holds_is_refused(wrong: float) -> None:
    weight = random(4, 64)
    weight[1, 5] = wrong
    with pytest.raises(UnsupportedModel, match=r"or beyond the 8\.31901e\+06 of dtype int8"):
        Blocks.nearest(weight)


def test_rows_are_stacked_and_reordered() -> None:
    least = random(3, 2).half()
    levels = torch.randint(0, 16, (3, 64), dtype=torch.uint8)
    first, second = (Blocks(levels, random(3, 2, seed=i).half(), least) for i in (1, 2))
    both = Blocks.stacked([first, second])
    assert both.bits == 4 and both.equals(torch.cat((first.floats(), second.floats())))
    assert both.by_row(lambda tensor: tensor.flip(0)).equals(both.floats().flip(0))
    with pytest.raises(UnsupportedModel, match="cannot be one matrix"):
        Blocks.stacked([first, Blocks.nearest(random(3, 64))])
