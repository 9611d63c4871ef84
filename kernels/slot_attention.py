"""Attention of rows to their sequences, each of which lies in one piece of memory.

``out = sum_j softmax_j(q k_j) v_j`` over what `SlotRows` says that a row sees; queries come scaled.
Up to `SPLITS` programs per row and KV head, whose query heads are the rows of their tile, take
turns at tiles of 128 slots, which are read as they lie; the last of them gathers the slots of the
line, too. The last one to arrive puts their parts together, in order. Nothing else is read, so
what lies there need not be finite. A row that sees nothing gets zeros.

Scores, weights and sums are float32; weights go to bfloat16 before they meet the values. Moves
4 head_dim bytes per row, KV head and slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.e4m3 import INTERPRETED, to_bf16
from kernels.slot_rows import SlotRows, check_memory, check_rows

SPLITS = tl.constexpr(8)
_TILE = tl.constexpr(128)
_LOW = tl.constexpr(-1e30)  # below any score, and finite: its distance to itself is 0
_LEAST = tl.constexpr(1e-30)


@dataclass(frozen=True, slots=True)
class SlotParts:
    """What programs leave for each other: float32 [rows, heads, SPLITS] and [.., head_dim].

    arrivals: int32 [rows, kv_heads]; zeros before and after.
    """

    tops: Tensor
    totals: Tensor
    found: Tensor
    arrivals: Tensor

    @classmethod
    def empty(
        cls, rows: int, heads: int, kv_heads: int, head_dim: int, device: torch.device
    ) -> SlotParts:
        """For up to so many rows."""
        shape = (rows, heads, SPLITS.value)
        return cls(
            torch.empty(shape, device=device),
            torch.empty(shape, device=device),
            torch.empty((*shape, head_dim), device=device),
            torch.zeros(rows, kv_heads, dtype=torch.int32, device=device),
        )

    def check(self, rows: int, heads: int, kv_heads: int, head_dim: int) -> None:
        """Raises ValueError if they are for others, or for fewer rows."""
        shape = (max(rows, len(self.arrivals)), heads, SPLITS.value)
        check_tensor("parts.tops", self.tops, shape, torch.float32)
        check_tensor("parts.totals", self.totals, shape, torch.float32)
        check_tensor("parts.found", self.found, (*shape, head_dim), torch.float32)
        check_tensor("parts.arrivals", self.arrivals, (shape[0], kv_heads), torch.int32)


def slot_attention(qkv: Tensor, rows: SlotRows, memory: Tensor, parts: SlotParts) -> Tensor:
    """bfloat16 [rows, heads * head_dim].

    Args:
        qkv: bfloat16 [rows, (heads + 2 * kv_heads) * head_dim], of which queries are read.
        memory: of one layer, bfloat16, the rows' own entries included.
        parts: of nobody else at that time.

    Raises:
        ValueError: a tensor has another shape or dtype.
    """
    _, kv_heads, slots, head_dim = memory.shape
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    check_rows(rows)
    check_memory(memory, heads, kv_heads, head_dim)
    check_tensor("qkv", qkv, (len(rows), (heads + 2 * kv_heads) * head_dim), torch.bfloat16)
    parts.check(len(rows), heads, kv_heads, head_dim)
    out = qkv.new_empty((len(rows), heads * head_dim))
    _slot_attention[(len(rows), kv_heads, SPLITS.value)](
        qkv,
        memory,
        rows.first,
        rows.seen,
        rows.depth,
        rows.lines,
        parts.tops,
        parts.totals,
        parts.found,
        parts.arrivals,
        out,
        rows.stride,
        slots,
        LINE=rows.lines.shape[1],
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP=max(triton.next_power_of_2(heads // kv_heads), 16),
        HEAD_DIM=head_dim,
        WIDTH=max(triton.next_power_of_2(head_dim), 16),
        num_warps=4 if head_dim <= 64 else 8,  # more of a wide head than that would spill
        num_stages=2,
    )
    return out


@triton.jit
def _slot_attention(
    qkv, memory, first, seen, depth, lines, tops, totals, parts_found, arrivals, out,
    stride, slots,
    LINE: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    end = tl.load(seen + row * stride).to(tl.int32)
    parts = tl.minimum(tl.maximum(tl.cdiv(end, _TILE), 1), SPLITS)
    if split < parts:
        member, lane = tl.arange(0, GROUP), tl.arange(0, WIDTH)
        head = row * HEADS + kv_head * (HEADS // KV_HEADS) + member
        real = member < HEADS // KV_HEADS
        used = real[:, None] & (lane < HEAD_DIM)[None, :]
        query = (head + row * (2 * KV_HEADS))[:, None] * HEAD_DIM + lane[None, :]
        q = tl.load(qkv + query, mask=used, other=0.0)
        begin = tl.load(first + row * stride)
        keys = memory + (kv_head.to(tl.int64) * slots + begin) * HEAD_DIM
        values = keys + KV_HEADS * slots.to(tl.int64) * HEAD_DIM
        top = tl.full([GROUP], _LOW, tl.float32)
        total = tl.zeros([GROUP], tl.float32)
        found = tl.zeros([GROUP, WIDTH], tl.float32)
        for start in range(split * _TILE, end, SPLITS * _TILE):
            at = start + tl.arange(0, _TILE)
            top, total, found = _add(
                q, keys, values, at, at < end, top, total, found, HEAD_DIM, WIDTH
            )
        deep = tl.load(depth + row * stride)
        if (split == parts - 1) & (deep > 0):
            place = tl.arange(0, LINE)
            at = tl.load(lines + row * stride + place, mask=place < deep, other=0)
            top, total, found = _add(
                q, keys, values, at, place < deep, top, total, found, HEAD_DIM, WIDTH
            )
        target = out + head[:, None] * HEAD_DIM + lane[None, :]
        if parts == 1:
            found /= tl.maximum(total, _LEAST)[:, None]
            tl.store(target, to_bf16(found), mask=used)
        else:
            vector = head * SPLITS
            inner = vector[:, None] * HEAD_DIM + lane[None, :]
            tl.store(tops + vector + split, top, mask=real)
            tl.store(totals + vector + split, total, mask=real)
            tl.store(parts_found + inner + split * HEAD_DIM, found, mask=used)
            # Every thread's part must be there before the one that counts says so.
            tl.debug_barrier()
            arrived = tl.atomic_add(
                arrivals + row * KV_HEADS + kv_head, 1, sem="acq_rel", scope="gpu"
            )
            if arrived == parts - 1:
                found = _together(
                    tops + vector, totals + vector, parts_found + inner, parts, real, used,
                    GROUP, HEAD_DIM, WIDTH,
                )  # fmt: skip
                tl.store(arrivals + row * KV_HEADS + kv_head, 0)
                tl.store(target, to_bf16(found), mask=used)


@triton.jit
def _together(
    tops, totals, parts_found, parts, real, used,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """What the first ``parts`` splits have found, as one: [GROUP, WIDTH]."""
    highest = tl.full([GROUP], _LOW, tl.float32)
    for part in tl.static_range(SPLITS):
        there = real & (part < parts)
        top = tl.load(tops + part, mask=there, other=_LOW, cache_modifier=".cg")
        highest = tl.maximum(highest, top)
    total = tl.zeros([GROUP], tl.float32)
    found = tl.zeros([GROUP, WIDTH], tl.float32)
    for part in tl.static_range(SPLITS):
        there = real & (part < parts)
        top = tl.load(tops + part, mask=there, other=_LOW, cache_modifier=".cg")
        weight = tl.exp(top - highest)
        total += weight * tl.load(totals + part, mask=there, other=0.0, cache_modifier=".cg")
        inner = parts_found + part * HEAD_DIM
        more = tl.load(inner, mask=used & (part < parts), other=0.0, cache_modifier=".cg")
        found += weight[:, None] * more
    return found / tl.maximum(total, _LEAST)[:, None]


@triton.jit
def _add(
    q, keys, values, at, visible, top, total, found, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr
):
    """What is known of the softmax so far, with the slots ``at`` as well."""
    lane = tl.arange(0, WIDTH)
    offset = at[:, None] * HEAD_DIM + lane[None, :]
    inside = visible[:, None] & (lane < HEAD_DIM)[None, :]
    k = tl.load(keys + offset, mask=inside, other=0.0)
    v = tl.load(values + offset, mask=inside, other=0.0)
    scores = tl.dot(_operand(q), tl.trans(_operand(k)))
    scores = tl.where(visible[None, :], scores, float("-inf"))
    highest = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp(scores - highest[:, None])
    fading = tl.exp(top - highest)
    total = total * fading + tl.sum(weights, 1)
    found = found * fading[:, None] + tl.dot(_operand(to_bf16(weights)), _operand(v))
    return highest, total, found


@triton.jit
def _operand(x):
    """The interpreter has no products of bfloat16."""
    if INTERPRETED:
        return x.to(tl.float32)
    else:
        return x


def slot_attention_reference(qkv: Tensor, rows: SlotRows, memory: Tensor) -> Tensor:
    """`slot_attention` row by row in float64: [rows, heads * head_dim]."""
    _, kv_heads, _, head_dim = memory.shape
    q = qkv.double().view(len(rows), -1, head_dim)[:, : -2 * kv_heads]
    q = q.unflatten(1, (kv_heads, -1))
    out = torch.zeros_like(q)
    for row in range(len(rows)):
        line = rows.lines[row, : int(rows.depth[row])]
        ahead = torch.arange(int(rows.seen[row]), device=line.device)
        keys, values = memory.double()[:, :, rows.first[row] + torch.cat((ahead, line))]
        if keys.shape[1]:
            out[row] = (q[row] @ keys.mT).softmax(dim=-1) @ values
    return out.flatten(1)
