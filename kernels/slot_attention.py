"""Attention of rows to their sequences, each of which lies in one piece of memory.

``out = sum_j softmax_j(q k_j) v_j`` over what `SlotRows` says that a row sees; queries come scaled.
One program per row and KV head, whose query heads are the rows of its tile. The slots at the
beginning are read as they lie, those of the line are gathered. Nothing else is read, so what lies
there need not be finite. A row that sees nothing gets zeros.

Scores, weights and sums are float32; weights go to bfloat16 before they meet the values. Moves
4 head_dim bytes per row, KV head and slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.e4m3 import INTERPRETED, to_bf16
from kernels.slot_rows import SlotRows, check_memory, check_rows

_TILE = tl.constexpr(128)
_LOW = tl.constexpr(-1e30)  # below any score, and finite: its distance to itself is 0
_LEAST = tl.constexpr(1e-30)


def slot_attention(qkv: Tensor, rows: SlotRows, memory: Tensor) -> Tensor:
    """bfloat16 [rows, heads * head_dim].

    Args:
        qkv: bfloat16 [rows, (heads + 2 * kv_heads) * head_dim], of which queries are read.
        memory: of one layer, bfloat16, the rows' own entries included.

    Raises:
        ValueError: a tensor has another shape or dtype.
    """
    _, kv_heads, slots, head_dim = memory.shape
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    check_rows(rows)
    check_memory(memory, heads, kv_heads, head_dim)
    check_tensor("qkv", qkv, (len(rows), (heads + 2 * kv_heads) * head_dim), torch.bfloat16)
    out = qkv.new_empty((len(rows), heads * head_dim))
    _slot_attention[(len(rows), kv_heads)](
        qkv,
        memory,
        rows.first,
        rows.seen,
        rows.depth,
        rows.lines,
        out,
        rows.stride,
        slots,
        LINE=rows.lines.shape[1],
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP=max(triton.next_power_of_2(heads // kv_heads), 16),
        HEAD_DIM=head_dim,
        WIDTH=max(triton.next_power_of_2(head_dim), 16),
        num_warps=4,
        num_stages=2,
    )
    return out


@triton.jit
def _slot_attention(
    qkv, memory, first, seen, depth, lines, out,
    stride, slots,
    LINE: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    member, lane = tl.arange(0, GROUP), tl.arange(0, WIDTH)
    head = kv_head * (HEADS // KV_HEADS) + member
    used = (member < HEADS // KV_HEADS)[:, None] & (lane < HEAD_DIM)[None, :]
    query = row * (HEADS + 2 * KV_HEADS) + head
    q = tl.load(qkv + query[:, None] * HEAD_DIM + lane[None, :], mask=used, other=0.0)
    begin = tl.load(first + row * stride)
    keys = memory + (kv_head.to(tl.int64) * slots + begin) * HEAD_DIM
    values = keys + KV_HEADS * slots.to(tl.int64) * HEAD_DIM
    top = tl.full([GROUP], _LOW, tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    found = tl.zeros([GROUP, WIDTH], tl.float32)
    end = tl.load(seen + row * stride).to(tl.int32)
    for start in range(0, end, _TILE):
        at = start + tl.arange(0, _TILE)
        top, total, found = _add(q, keys, values, at, at < end, top, total, found, HEAD_DIM, WIDTH)
    place = tl.arange(0, LINE)
    above = place < tl.load(depth + row * stride)
    at = tl.load(lines + row * stride + place, mask=above, other=0)
    top, total, found = _add(q, keys, values, at, above, top, total, found, HEAD_DIM, WIDTH)
    found /= tl.maximum(total, _LEAST)[:, None]
    target = row * HEADS + head
    tl.store(out + target[:, None] * HEAD_DIM + lane[None, :], to_bf16(found), mask=used)


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
