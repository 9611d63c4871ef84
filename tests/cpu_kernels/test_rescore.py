"""The largest of every lane become what the exact product has there, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foredraft.engine.native.blocks import Blocks
from foredraft.engine.native.large_pages import LargePages
from foredraft.engine.native.packed import Packed
from foredraft.engine.native.products import Products
from kernels.cpu.emitter import LANES
from kernels.cpu.program import Program
from kernels.cpu.rescore import COUNT
from kernels.cpu.team import Team

COLUMNS = 96
TEAM = Team(2)


def blocks(bits: int, outputs: int) -> Blocks:
    random = torch.Generator().manual_seed(bits)
    shape, scales = (outputs, COLUMNS), torch.rand(outputs, 3, generator=random).half()
    if bits == 8:
        levels = torch.randint(-127, 128, shape, generator=random, dtype=torch.int8)
        return Blocks(levels, scales, None)
    levels = torch.randint(0, 16, shape, generator=random, dtype=torch.uint8)
    return Blocks(levels, scales, torch.randn(outputs, 3, generator=random).half())


def logits(x: Tensor, held: Blocks, exact: Blocks | None = None) -> Tensor:
    """Of `Products`, with padding; by ``exact`` too, if it is given."""
    packed = Packed.of(held, LargePages())
    products = Products(TEAM, len(x), COLUMNS, 1e-5)
    y, gamma = torch.empty(len(x), packed.outputs), torch.linspace(0.5, 2.0, COLUMNS)
    steps = [products.step("normed", x, packed, y, gamma)]
    if exact is not None:
        steps.append(products.rescore(y, exact))
    program = Program(steps)
    program.set(rows=len(x))
    program.run()
    return y


@pytest.mark.parametrize("outputs", [16, 50, 1000])
@pytest.mark.parametrize("rows", [1, 5])
def test_the_largest_have_the_bits_of_the_exact_product(outputs: int, rows: int) -> None:
    x = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(outputs))
    rough, exact = blocks(4, outputs), blocks(8, outputs)
    before, wanted = logits(x, rough), logits(x, exact)
    best = before.unflatten(1, (-1, LANES)).topk(min(COUNT, before.shape[1] // LANES), dim=1)
    places = (best.indices * LANES + torch.arange(LANES)).flatten(1)
    chosen = torch.zeros_like(before, dtype=torch.bool).scatter_(1, places, True)
    chosen[:, outputs:] = False  # padding
    assert torch.equal(logits(x, rough, exact), torch.where(chosen, wanted, before))


def test_a_row_that_is_not_finite_stays_alone_and_within_its_bounds() -> None:
    x = torch.randn(3, COLUMNS, generator=torch.Generator().manual_seed(0))
    rough, exact = blocks(4, 64), blocks(8, 64)
    good = logits(x, rough, exact)
    x[1, 5] = torch.nan
    found = logits(x, rough, exact)
    assert not found[1].isfinite().any()
    assert torch.equal(found[[0, 2]], good[[0, 2]])
