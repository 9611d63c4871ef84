"""Kernels of a draft's pass: rotation into slots, and attention over what rows see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.embed_norm import embed_norm
from kernels.rope_kv_write import HeadNorms
from kernels.rope_slot_write import rope_slot_write, rope_slot_write_reference
from kernels.slot_attention import SlotParts, slot_attention, slot_attention_reference
from kernels.slot_rows import SlotRows
from kernels.swiglu import swiglu

HEADS = {"llama": (9, 3, 64), "qwen2": (7, 1, 8), "qwen3": (4, 2, 24), "wide": (20, 1, 16)}
SHAPES = [
    pytest.param(heads, id=name, marks=[pytest.mark.slow] if name in ("qwen3", "wide") else [])
    for name, heads in HEADS.items()
]
SLOTS = 2560
LINE = 16


def table(device: torch.device, rows: list[tuple[int, int, list[int]]]) -> SlotRows:
    """From (first, seen, line) of every row; the last of a line, or what is seen, is its own."""
    made = torch.full((len(rows), 7 + LINE), 10**6, device=device)
    for row, (first, seen, line) in enumerate(rows):
        own = line[-1] if line else seen - 1
        made[row, :5] = torch.tensor([seen, first + own, first, seen, len(line)])
        made[row, 7 : 7 + len(line)] = torch.tensor(line, dtype=torch.int64)
    return SlotRows(*made[:, :5].unbind(1), made[:, 7:])


def random(device: torch.device, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, torch.bfloat16)


@pytest.mark.parametrize("heads", SHAPES)
def test_rows_see_their_text_and_their_line(device: torch.device, heads: tuple[int, int, int]):
    """Nothing else is read: all other memory is NaN."""
    query_heads, kv_heads, head_dim = heads
    rows = table(
        device,
        [
            (16, 5, []),
            (16, 5, [9, 7]),
            (48, 300, [301, 305, 303, *range(310, 323)]),
            (900, 1400, [1401]),
            (400, 128, [128]),
            (600, 0, [0]),
            (1000, 257, []),
            (0, 0, []),
        ],
    )
    qkv = random(device, len(rows), (query_heads + 2 * kv_heads) * head_dim)
    memory = torch.full((2, kv_heads, SLOTS, head_dim), torch.nan, device=device).bfloat16()
    for row in range(len(rows)):
        first, seen, depth = (int(x[row]) for x in (rows.first, rows.seen, rows.depth))
        line = [first + int(slot) for slot in rows.lines[row, :depth]]
        read = [*range(first, first + seen), *line]
        memory[:, :, read] = random(device, 2, kv_heads, len(read), head_dim)
    parts = SlotParts.empty(len(rows) + 1, *heads, device)
    found = slot_attention(qkv, rows, memory, parts)
    exact = slot_attention_reference(qkv, rows, memory)
    torch.testing.assert_close(found.double(), exact, atol=2e-2, rtol=2e-2)
    assert (found[-1] == 0).all() and (parts.arrivals == 0).all()
    assert slot_attention(qkv, rows, memory, parts).equal(found)


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("heads", SHAPES)
def test_heads_are_turned_and_written(
    device: torch.device, heads: tuple[int, int, int], normed: bool
):
    query_heads, kv_heads, head_dim = heads
    rows = table(device, [(16, 5, []), (16, 5, [9, 7]), (48, 301, [])])
    angles = torch.arange(400.0)[:, None] * torch.logspace(0, -3, head_dim // 2)
    turns = torch.stack((angles.cos(), angles.sin()), dim=-1).to(device)
    norms = None
    if normed:
        weights = random(device, query_heads + kv_heads, head_dim).float()
        norms = HeadNorms(weights, 1e-5)
    results = []
    for write in (rope_slot_write, rope_slot_write_reference):
        qkv = random(device, len(rows), (query_heads + 2 * kv_heads) * head_dim)
        memory = torch.zeros(2, kv_heads, SLOTS, head_dim, device=device).bfloat16()
        write(qkv, turns, rows, memory, norms)
        results.append((qkv[:, : query_heads * head_dim], memory))
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact, atol=1e-5, rtol=2**-7)
    assert int((results[0][1] != 0).any(-1).sum()) == 2 * kv_heads * len(rows)


def test_tokens_are_looked_up_and_normed(device: torch.device):
    embedding, rows = random(device, 400, 96), table(device, [(0, 5, []), (0, 301, [])])
    x, y = embed_norm(embedding, rows.position, 1e-5)
    assert x.equal(embedding[rows.position])
    exact = x.double() / (x.double().square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(y.double(), exact, atol=1e-6, rtol=2**-8)


def test_gates_are_multiplied(device: torch.device):
    gate_up = 3 * random(device, 3, 2 * 700)
    gate, up = gate_up.double().chunk(2, dim=1)
    exact = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(swiglu(gate_up).double(), exact, atol=1e-6, rtol=2**-8)


def test_what_does_not_fit_is_refused(device: torch.device):
    rows = table(device, [(16, 5, [])])
    qkv, memory = random(device, 1, 6 * 8), random(device, 2, 1, SLOTS, 8)
    parts = SlotParts.empty(1, 4, 1, 8, device)
    with pytest.raises(ValueError, match=r"qkv must be contiguous torch.bfloat16 \[1, 48\]"):
        slot_attention(qkv.float(), rows, memory, parts)
    with pytest.raises(ValueError, match="memory must be contiguous"):
        slot_attention(qkv, rows, memory[:, :, ::2], parts)
    with pytest.raises(ValueError, match=r"parts.tops must be .* \[1, 4, 8\]"):
        slot_attention(qkv, rows, memory, SlotParts.empty(1, 5, 1, 8, device))
    with pytest.raises(ValueError, match="token must be"):
        embed_norm(memory[0, 0], rows.position.int(), 1e-5)
    with pytest.raises(ValueError, match="turns must be"):
        rope_slot_write(qkv, torch.zeros(9, 8, 2, device=device), rows, memory)
    with pytest.raises(ValueError, match="even number of columns"):
        swiglu(qkv[:, :5].contiguous())
