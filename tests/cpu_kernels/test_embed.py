"""Rows of an embedding in blocks are the very numbers that the blocks stand for."""

from __future__ import annotations

import pytest
import torch

from foredraft.engine.native.blocks import BLOCK, Blocks
from kernels.cpu import embed
from kernels.cpu.program import Program, Step


@pytest.mark.parametrize("bits", [4, 8])
def test_looked_up_rows_are_those_of_the_blocks(bits: int) -> None:
    random = torch.Generator().manual_seed(bits)
    scales, offsets = torch.randn(2, 50, 3, generator=random).half()
    low, high, kind = (0, 16, torch.uint8) if bits == 4 else (-127, 128, torch.int8)
    levels = torch.randint(low, high, (50, 3 * BLOCK), generator=random).to(kind)
    blocks = Blocks(levels, scales, offsets if bits == 4 else None)
    tokens = torch.tensor([49, 0, 7, 7, 30])
    x = torch.full((6, 3 * BLOCK), -1.0)
    values = {
        "tokens": tokens.data_ptr(),
        "levels": levels.data_ptr(),
        "scales": scales.data_ptr(),
        "least": offsets.data_ptr() if bits == 4 else 0,
        "x": x.data_ptr(),
        "rows": 2,
        "blocks": 3,
    }
    program = Program([Step(embed.compiled_embed().address("embed"), embed.FIELDS, values)])
    program.run()
    assert torch.equal(x[:2], blocks.floats()[tokens[:2]]) and (x[2:] == -1.0).all()
    program.set(rows=5)
    program.run()
    assert torch.equal(x[:5], blocks.floats()[tokens]) and (x[5] == -1.0).all()
