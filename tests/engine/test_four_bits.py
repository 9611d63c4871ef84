"""Blocks of 4 bits: no worse than the plain way to round, and exact where that is possible."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foredraft.engine.native.blocks import BLOCK, Blocks
from foredraft.engine.native.four_bits import four_bits


def errors(made: Blocks | None, weight: Tensor) -> Tensor:
    """Sum of squares of each block: [rows, blocks]."""
    assert made is not None and made.bits == 4 and made.sound
    return (made.floats() - weight).unflatten(1, (-1, BLOCK)).square().sum(dim=2)


def test_errors_are_smaller_than_between_least_and_largest() -> None:
    weight = torch.randn(5000, 64, generator=torch.Generator().manual_seed(0))
    numbers = weight.unflatten(1, (-1, BLOCK))
    least, largest = numbers.amin(dim=2, keepdim=True), numbers.amax(dim=2, keepdim=True)
    step = (largest - least) / 15
    plain = ((numbers - least) / step).round() * step + least
    of_plain = (plain - numbers).square().sum(dim=2)
    found = errors(four_bits(weight), weight)
    assert (found < 1.02 * of_plain).all()
    assert found.sum() < 0.9 * of_plain.sum()


def test_what_blocks_of_4_bits_hold_stays() -> None:
    random = torch.Generator().manual_seed(1)
    levels = torch.randint(0, 16, (40, 96), generator=random).to(torch.uint8)
    levels[:, ::BLOCK], levels[:, 1::BLOCK] = 0, 15
    scales = torch.rand(40, 3, generator=random).half() + 0.5
    held = Blocks(levels, scales, torch.randn(40, 3, generator=random).half())
    made = four_bits(held.floats())
    assert made is not None and torch.equal(made.levels, levels)
    torch.testing.assert_close(made.floats(), held.floats(), atol=0.004, rtol=0.002)


def test_a_block_of_equal_numbers_is_that_number() -> None:
    weight = torch.tensor([0.0, -0.75, 3.0])[:, None].expand(3, BLOCK)
    made = four_bits(weight)
    assert made is not None and made.equals(weight)


@pytest.mark.parametrize("wrong", [torch.inf, torch.nan, 1e7], ids=str)
def test_what_float16_does_not_hold_makes_none(wrong: float) -> None:
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(2))
    weight[1, 5] = wrong
    assert four_bits(weight) is None
