"""Turn queries and keys by their positions, and write keys and values into their slots.

``(x[2i], x[2i + 1]) -> (x[2i] cos a - x[2i + 1] sin a, x[2i] sin a + x[2i + 1] cos a)`` in
float32, rounded once to bfloat16. Queries are multiplied by ``head_dim^-0.5`` before that, and
stay where they are. Where a family norms its heads, ``x / sqrt(mean(x^2) + eps) * weight`` comes
first.

Moved per row: 2 (heads + 2 kv_heads) head_dim bytes in and out, 4 head_dim of the table of turns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.e4m3 import to_bf16
from kernels.rope_kv_write import HeadNorms
from kernels.slot_rows import SlotRows, check_memory, check_rows


def rope_slot_write(
    qkv: Tensor,
    turns: Tensor,
    rows: SlotRows,
    memory: Tensor,
    head_norms: HeadNorms | None = None,
) -> None:
    """Make the queries of ``qkv`` ready, in place, and write its keys and values.

    Args:
        qkv: bfloat16 [rows, (heads + 2 * kv_heads) * head_dim]: queries, keys, values.
        turns: float32 [positions, head_dim / 2, 2]: cosine and sine of every angle.
        memory: of one layer, bfloat16. Rows that nobody needs may share a slot.

    Raises:
        ValueError: a tensor has another shape or dtype.
    """
    _, kv_heads, slots, head_dim = memory.shape
    planes = qkv.shape[1] // head_dim
    heads = planes - 2 * kv_heads
    check_rows(rows)
    check_memory(memory, heads, kv_heads, head_dim)
    check_tensor("qkv", qkv, (len(rows), planes * head_dim), torch.bfloat16)
    check_tensor("turns", turns, (len(turns), head_dim // 2, 2), torch.float32)
    if head_norms is not None:
        shape = (heads + kv_heads, head_dim)
        check_tensor("head_norms.weights", head_norms.weights, shape, torch.float32)
    _rope_slot_write[(len(rows), planes)](
        qkv,
        turns,
        rows.position,
        rows.slot,
        memory,
        qkv if head_norms is None else head_norms.weights,
        rows.stride,
        slots,
        0.0 if head_norms is None else head_norms.eps,
        head_dim**-0.5,
        NORMED=head_norms is not None,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        WIDTH=triton.next_power_of_2(head_dim),
        num_warps=1,
    )


@triton.jit
def _rope_slot_write(
    qkv, turns, position, slot, memory, norms,
    stride, slots, eps, scale,
    NORMED: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program per row and head of qkv."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, WIDTH)
    inside = lane < HEAD_DIM
    here = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM + lane
    x = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS + KV_HEADS:
        if NORMED:
            weight = tl.load(norms + head * HEAD_DIM + lane, mask=inside, other=0.0)
            x = x * tl.rsqrt(tl.sum(x * x, 0) / HEAD_DIM + eps) * weight
        pair = tl.arange(0, WIDTH // 2)
        turn = turns + (tl.load(position + row * stride) * (HEAD_DIM // 2) + pair) * 2
        cosine = tl.load(turn, mask=pair < HEAD_DIM // 2, other=0.0)
        sine = tl.load(turn + 1, mask=pair < HEAD_DIM // 2, other=0.0)
        real, imaginary = tl.split(tl.reshape(x, [WIDTH // 2, 2]))
        turned = real * cosine - imaginary * sine, real * sine + imaginary * cosine
        x = tl.reshape(tl.join(turned[0], turned[1]), [WIDTH])
    if head < HEADS:
        tl.store(here, to_bf16(x * scale), mask=inside)
    else:
        plane = (head - HEADS).to(tl.int64) * slots + tl.load(slot + row * stride)
        tl.store(memory + plane * HEAD_DIM + lane, to_bf16(x), mask=inside)


def rope_slot_write_reference(
    qkv: Tensor,
    turns: Tensor,
    rows: SlotRows,
    memory: Tensor,
    head_norms: HeadNorms | None = None,
) -> None:
    """`rope_slot_write` in torch."""
    _, kv_heads, _, head_dim = memory.shape
    by_head = qkv.view(len(qkv), -1, head_dim)
    x = by_head.float()
    heads = x.shape[1] - 2 * kv_heads
    turned = x[:, : heads + kv_heads]
    if head_norms is not None:
        root = (turned.square().mean(dim=-1, keepdim=True) + head_norms.eps).sqrt()
        turned = turned / root * head_norms.weights
    real, imaginary = turned.unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = turns[rows.position, None].unbind(-1)
    turned = torch.stack(
        (real * cosine - imaginary * sine, real * sine + imaginary * cosine), dim=-1
    ).flatten(-2)
    by_head[:, :heads] = (turned[:, :heads] * head_dim**-0.5).bfloat16()
    entries = torch.cat((turned[:, heads:], x[:, heads + kv_heads :]), dim=1).bfloat16()
    memory.flatten(0, 1)[:, rows.slot] = entries.transpose(0, 1)
