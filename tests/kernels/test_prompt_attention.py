"""Attention of chunks, beside that of rows one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foredraft.engine.fp8.inputs import Inputs
from kernels.kv_layout import BLOCK, KVLayer, KVPool
from kernels.prompt_attention import ROWS, prompt_attention
from kernels.tree_attention import tree_attention_reference
from kernels.widen_kv import room_for

BLOCKS = 13
HEADS, KV_HEADS = 2, 1


def make_layer(head_dim: int, device: torch.device) -> KVLayer:
    """Vectors under powers of two from tiny to large, of any sizes within."""
    draw = torch.Generator().manual_seed(3)
    layer = KVPool.empty(1, KV_HEADS, BLOCKS + 1, head_dim, device).layer(0)
    codes = torch.randn(layer.codes.shape, generator=draw).mul_(8).to(torch.float8_e4m3fn)
    layer.codes.copy_(codes)
    layer.exponents.copy_(torch.randint(-6, 1, layer.exponents.shape, generator=draw))
    return layer


def chunk(start: int, count: int, rows: int, device: torch.device) -> Inputs:
    """A chunk of one sequence, whose blocks lie in any order."""
    inputs = Inputs.empty(1, rows, BLOCKS, device)
    blocks = (1 + torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(4))).tolist()
    inputs.fill_chunk(blocks, [0] * count, start)
    return inputs


def attend(layer: KVLayer, inputs: Inputs, queries: Tensor, left: float = torch.nan) -> Tensor:
    """``left``: what earlier chunks left in the memory between."""
    widened = room_for(layer, BLOCKS).fill_(left)
    out = torch.empty_like(queries)
    prompt_attention(queries, layer, inputs.tables, inputs.rows, widened, out)
    return out


def queries_of(rows: int, head_dim: int, device: torch.device) -> Tensor:
    draw = torch.Generator().manual_seed(5)
    return torch.randn(rows, HEADS, head_dim, generator=draw).bfloat16().to(device)


@pytest.mark.parametrize(
    ("start", "count", "head_dim"),
    [(0, ROWS, 16), (ROWS, ROWS + 9, 48)],
    ids=["first", "later, padded"],
)
def test_rows_see_all_before_them(
    device: torch.device, start: int, count: int, head_dim: int
) -> None:
    layer, inputs = make_layer(head_dim, device), chunk(start, count, 2 * ROWS, device)
    queries = queries_of(2 * ROWS, head_dim, device)
    found = attend(layer, inputs, queries)[:count].double()
    exact = tree_attention_reference(queries, layer, inputs.tables, inputs.rows, inputs.path)
    magnitudes = KVLayer(layer.codes.clone(), layer.exponents)
    magnitudes.codes[1] = layer.codes[1].float().abs().to(torch.float8_e4m3fn)
    mean = tree_attention_reference(queries, magnitudes, inputs.tables, inputs.rows, inputs.path)
    bound = 2**-8 * (mean + exact.abs())[:count] + 1e-6
    assert ((found - exact[:count]).abs() <= bound).all()


def test_bits_are_those_of_the_place(device: torch.device) -> None:
    """Whatever else the chunk holds, however long it is, and whatever was in the memory before."""
    layer, rows = make_layer(16, device), 2 * ROWS
    queries = queries_of(rows, 16, device)
    together = attend(layer, chunk(0, rows, rows, device), queries)
    half = attend(layer, chunk(0, ROWS, rows, device), queries)
    alone = attend(layer, chunk(ROWS, 9, ROWS, device), queries[ROWS:].contiguous(), left=7.0)
    assert torch.equal(half[:ROWS], together[:ROWS])
    assert torch.equal(alone[:9], together[ROWS : ROWS + 9])


def test_a_broken_row_stays_with_those_behind_it(device: torch.device) -> None:
    layer, inputs = make_layer(16, device), chunk(0, ROWS, ROWS, device)
    block, within = int(inputs.tables[0, 2]), 5
    layer.codes.view(torch.uint8)[:, :, block, within] = 0x7F
    found = attend(layer, inputs, queries_of(ROWS, 16, device))
    assert found[2 * BLOCK + within :].isnan().all()


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    layer, inputs = make_layer(16, device), chunk(0, 4, ROWS, device)
    queries = queries_of(ROWS, 16, device)
    with pytest.raises(ValueError, match="heads of q"):
        attend(KVPool.empty(1, 3, 2, 16, device).layer(0), inputs, queries)
    small, out = room_for(layer, 1), torch.empty_like(queries)
    with pytest.raises(ValueError, match="widened"):
        prompt_attention(queries, layer, inputs.tables, inputs.rows, small, out)
