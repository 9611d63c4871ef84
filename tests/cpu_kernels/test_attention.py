"""Rotation, the paged memory and attention: right, and a row has its own bits in any company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.cpu import attention, rope_kv_write
from kernels.cpu.emitter import LANES
from kernels.cpu.job import Job, float_bits
from kernels.cpu.team import Team

EPS = 1e-5
TEAM = Team(2)
SLOTS = 400
SHAPES = [(64, 3, 3), (128, 2, 4), (64, 1, 1), (16, 2, 7), (8, 1, 2)]  # head_dim, kv_heads, group
LENGTHS = (1, 7, 8, 9, 31, 64, 100, 257, 333)
OWN = 5  # last entries that stand in the row's own piece


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("extras", [False, True], ids=["plain", "bias and norms"])
def test_heads_are_turned_and_written(shape: tuple[int, int, int], extras: bool) -> None:
    width, kv_heads, group = shape
    heads, rows = kv_heads * group, len(LENGTHS)
    columns = (heads + 2 * kv_heads) * width
    given = normal(rows, columns + 16, seed=0)
    bias = normal(columns, seed=1) if extras else None
    norms = normal(heads + kv_heads, width, seed=2).abs() + 0.5 if extras else None
    angles = normal(rows, width // 2, seed=3) * 6
    slots = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(4))[:rows]
    memory = normal(2 * kv_heads, SLOTS, width, seed=5)

    x = given[:, :columns].double().view(rows, -1, width)
    x = x if bias is None else x + bias.view(1, -1, width)
    turned = x[:, : heads + kv_heads]
    if norms is not None:
        turned = turned / (turned.square().mean(-1, keepdim=True) + EPS).sqrt() * norms
    cosines, sines = angles.double().cos()[:, None], angles.double().sin()[:, None]
    a, b = turned[..., ::2], turned[..., 1::2]
    turned = torch.stack((a * cosines - b * sines, b * cosines + a * sines), -1).flatten(-2)
    expected = memory.double()
    expected[:kv_heads, slots] = turned[:, heads:].transpose(0, 1)
    expected[kv_heads:, slots] = x[:, heads + kv_heads :].transpose(0, 1)

    write(given, bias, norms, angles, slots, memory, (heads, kv_heads, width))
    queries = given[:, : heads * width].double().view(rows, heads, width)
    assert (queries - turned[:, :heads]).abs().max() <= 2e-6
    assert (memory.double() - expected).abs().max() <= 2e-6


def write(
    qkv: Tensor,
    bias: Tensor | None,
    norms: Tensor | None,
    angles: Tensor,
    slots: Tensor,
    memory: Tensor,
    heads: tuple[int, int, int],
) -> None:
    sines = angles.sin().repeat_interleave(2, 1)
    sines[:, ::2].neg_()
    turns = torch.stack((angles.cos().repeat_interleave(2, 1), sines), 1).flip(0)
    positions = torch.arange(len(qkv)).flip(0)
    job = Job(
        rope_kv_write.FIELDS,
        qkv=qkv.data_ptr(),
        row_stride=qkv.stride(0),
        bias=0 if bias is None else bias.data_ptr(),
        norms=0 if norms is None else norms.data_ptr(),
        eps=float_bits(EPS),
        turns=turns.data_ptr(),
        positions=positions.data_ptr(),
        slots=slots.data_ptr(),
        memory=memory.data_ptr(),
        plane_stride=memory.stride(0),
        rows=len(qkv),
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=heads[2],
    )
    job.run(rope_kv_write.compiled_write()["write"])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_attend_to_their_entries_wherever_these_lie(shape: tuple[int, int, int]) -> None:
    width, kv_heads, group = shape
    memory = normal(2 * kv_heads, SLOTS, width, seed=6)
    q = normal(len(LENGTHS), kv_heads * group * width + 8, seed=7)
    random = torch.Generator().manual_seed(8)
    slots = [torch.randperm(SLOTS, generator=random)[:length] for length in LENGTHS]
    found = attend(q, memory, slots, shape)
    for row, seen in enumerate(slots):
        for head in range(kv_heads * group):
            keys, values = (memory[part + head // group, seen].double() for part in (0, kv_heads))
            query = q[row, head * width :][:width].double()
            weights = (keys @ query * width**-0.5).softmax(0)
            place = slice(head * width, (head + 1) * width)
            assert (found[row, place] - weights @ values).abs().max() <= 2e-6
        assert torch.equal(attend(q[row : row + 1], memory, [seen], shape)[0], found[row])
    moved = torch.randperm(SLOTS, generator=random)
    elsewhere = torch.empty_like(memory)
    elsewhere[:, moved] = memory
    assert torch.equal(attend(q, elsewhere, [moved[seen] for seen in slots], shape), found)
    assert torch.equal(attend(q, memory, slots, shape, lanes=LANES), found)


def test_a_row_that_is_not_finite_stays_alone() -> None:
    shape = (16, 2, 2)
    memory, q = normal(4, SLOTS, 16, seed=9), normal(3, 64, seed=10)
    slots = [torch.arange(start, start + 40) for start in (0, 40, 80)]
    good = attend(q, memory, slots, shape)
    memory[0, 50] = float("nan")
    found = attend(q, memory, slots, shape)
    assert torch.equal(found[[0, 2]], good[[0, 2]])
    assert not found[1, :32].isfinite().any()


def attend(
    q: Tensor,
    memory: Tensor,
    slots: list[Tensor],
    shape: tuple[int, int, int],
    lanes: int | None = None,
) -> Tensor:
    """[rows, heads * head_dim]; a row's last entries are its own piece, before all others'."""
    width, kv_heads, group = shape
    capacity = max(map(len, slots)) + LANES
    scores = torch.empty(TEAM.threads, group, capacity)
    out = torch.empty(len(q), kv_heads * group * width)
    index, ranges = [], []
    end = 0
    for seen in slots:
        shared = max(len(seen) - OWN, 0)
        own = len(seen) - shared
        index += [seen[shared:], seen[:shared]]
        ranges.append([end + own, shared, end, own])
        end += len(seen)
    places, pieces = torch.cat(index).to(torch.int32), torch.tensor(ranges)
    job = Job(
        attention.FIELDS,
        q=q.data_ptr(),
        q_stride=q.stride(0),
        memory=memory.data_ptr(),
        plane_stride=memory.stride(0),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        scores=scores.data_ptr(),
        capacity=capacity,
        index=places.data_ptr(),
        ranges=pieces.data_ptr(),
        rows=len(q),
        kv_heads=kv_heads,
        team=TEAM.address,
    )
    job.run(attention.compiled_attention(width, group, lanes)["attend"])
    return out
