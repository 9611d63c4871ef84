"""Turn queries and keys by their positions, and write keys and values into the KV pool.

``(x[2i], x[2i + 1]) -> (x[2i] cos a - x[2i + 1] sin a, x[2i] sin a + x[2i + 1] cos a)`` with
``a = position * frequency[i]``: a pair stands side by side, so checkpoints' heads are reordered
when they are loaded. Products and sums are rounded to float32 one by one; queries then go to
bfloat16, keys and values straight to E4M3 under their own exponents (`kernels.kv_layout`). Where a
family norms the heads of queries and keys, ``x / sqrt(mean(x^2) + eps) * weight`` comes first.

A value that is not finite is written as NaN, whatever its vector's other values are. Rows whose
place is negative are padding: nothing of them is read or written.

Moved per row: 2 (heads + 2 kv_heads) head_dim bytes in and 4 head_dim of the table of turns,
2 heads head_dim + 2 kv_heads (head_dim + 1) out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.e4m3 import to_bf16, to_e4m3
from kernels.early_start import begin, let_next_in, starts_early
from kernels.kv_layout import (
    BLOCK,
    KVLayer,
    check_layer,
    exponent_of,
    finite_magnitude,
    no_infinity,
    power_of_two,
    quantize_vectors_reference,
)

_FEW_ROWS = 128  # more keep all processors at work with several heads in a program
_MANY_HEADS = 8


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms of query and key heads. weights: float32 [heads + kv_heads, head_dim]."""

    weights: Tensor
    eps: float


def rope_kv_write(
    qkv: Tensor,
    turns: Tensor,
    position: Tensor,
    place: Tensor,
    layer: KVLayer,
    q: Tensor,
    head_norms: HeadNorms | None = None,
) -> None:
    """Fill ``q`` and the places of ``layer`` from the rows of a step.

    Args:
        qkv: bfloat16 [rows, (heads + 2 * kv_heads) * head_dim]: queries, keys, values.
        turns: float32 [positions, head_dim / 2, 2]: cosine and sine of every angle.
        position: int32 [rows].
        place: int32 [rows], of the pool; no two rows share one, negative for padding.
        q: bfloat16 [rows, heads, head_dim].

    Raises:
        ValueError: a tensor has another shape or dtype.
    """
    rows, heads, head_dim = q.shape
    check_layer(layer)
    _, kv_heads, blocks, _, own_head_dim = layer.codes.shape
    columns = (heads + 2 * kv_heads) * head_dim
    check_tensor("q", q, (rows, heads, own_head_dim), torch.bfloat16)
    check_tensor("qkv", qkv, (rows, columns), torch.bfloat16)
    check_tensor("turns", turns, (len(turns), head_dim // 2, 2), torch.float32)
    check_tensor("position", position, (rows,), torch.int32)
    check_tensor("place", place, (rows,), torch.int32)
    if head_norms is not None:
        shape = (heads + kv_heads, head_dim)
        check_tensor("head_norms.weights", head_norms.weights, shape, torch.float32)
    if rows == 0:
        return
    early = starts_early(q.device)
    together = math.gcd(heads, kv_heads, _MANY_HEADS) if rows > _FEW_ROWS else 1
    rope_kv_write_kernel[(rows, (heads + 2 * kv_heads) // together)](
        qkv,
        turns,
        position,
        place,
        layer.codes,
        layer.exponents,
        q,
        qkv if head_norms is None else head_norms.weights,
        blocks * BLOCK,
        0.0 if head_norms is None else head_norms.eps,
        NORMED=head_norms is not None,
        HEADS=heads,
        KV_HEADS=kv_heads,
        TOGETHER=together,
        HEAD_DIM=head_dim,
        WIDTH=triton.next_power_of_2(head_dim),
        EARLY=early,
        launch_pdl=early,
        num_warps=max(together // 2, 1),
        enable_fp_fusion=False,
    )


@triton.jit
def rope_kv_write_kernel(
    qkv,
    turns,
    position,
    place,
    codes,
    exponents,
    q,
    norms,
    places,
    eps,
    NORMED: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    TOGETHER: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per row and TOGETHER heads of qkv, which are all queries, keys or values."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * TOGETHER
    let_next_in(EARLY)
    begin(EARLY)
    at = tl.load(place + row).to(tl.int64)
    if at >= 0:
        head, lane = first + tl.arange(0, TOGETHER), tl.arange(0, WIDTH)
        inside = (lane < HEAD_DIM)[None, :]
        source = row * (HEADS + 2 * KV_HEADS) + head
        there = qkv + source[:, None] * HEAD_DIM + lane[None, :]
        x = tl.load(there, mask=inside, other=0.0).to(tl.float32)
        if first < HEADS + KV_HEADS:
            if NORMED:
                root = tl.sqrt_rn(tl.sum(x * x, 1) / HEAD_DIM + eps)
                weight = norms + head[:, None] * HEAD_DIM + lane[None, :]
                weight = tl.load(weight, mask=inside, other=0.0)
                x = x * tl.div_rn(1.0, root)[:, None] * weight
            pair = tl.arange(0, WIDTH // 2)
            turn = turns + (tl.load(position + row).to(tl.int64) * (HEAD_DIM // 2) + pair) * 2
            cosine = tl.load(turn, mask=pair < HEAD_DIM // 2, other=0.0)[None, :]
            sine = tl.load(turn + 1, mask=pair < HEAD_DIM // 2, other=0.0)[None, :]
            real, imaginary = tl.split(tl.reshape(x, [TOGETHER, WIDTH // 2, 2]))
            turned = real * cosine - imaginary * sine, real * sine + imaginary * cosine
            x = tl.reshape(tl.join(turned[0], turned[1]), [TOGETHER, WIDTH])
        if first < HEADS:
            own = q + (row * HEADS + head)[:, None] * HEAD_DIM + lane[None, :]
            tl.store(own, to_bf16(x), mask=inside)
        else:
            target = (head - HEADS).to(tl.int64) * places + at
            exponent = exponent_of(tl.max(finite_magnitude(x), 1))
            code = to_e4m3(no_infinity(x) * power_of_two(-exponent)[:, None])
            tl.store(codes + target[:, None] * HEAD_DIM + lane[None, :], code, mask=inside)
            tl.store(exponents + target, exponent.to(tl.int8))


def rope_kv_write_reference(
    qkv: Tensor,
    turns: Tensor,
    position: Tensor,
    place: Tensor,
    layer: KVLayer,
    q: Tensor,
    head_norms: HeadNorms | None = None,
) -> None:
    """`rope_kv_write` in torch."""
    used = place >= 0
    _, heads, head_dim = q.shape
    kv_heads = layer.codes.shape[1]
    x = qkv[used].float().view(-1, heads + 2 * kv_heads, head_dim)
    turned = x[:, : heads + kv_heads]
    if head_norms is not None:
        root = (turned.square().mean(dim=-1, keepdim=True) + head_norms.eps).sqrt()
        turned = turned * (1 / root) * head_norms.weights
    real, imaginary = turned.unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = turns[position[used].long(), None].unbind(-1)
    turned = torch.stack(
        (real * cosine - imaginary * sine, real * sine + imaginary * cosine), dim=-1
    ).flatten(-2)
    q[used] = turned[:, :heads].bfloat16()
    keys_values = torch.cat((turned[:, heads:], x[:, heads + kv_heads :]), dim=1)
    codes, exponents = quantize_vectors_reference(keys_values)
    at = place[used].long()
    layer.codes.view(torch.uint8).view(2 * kv_heads, -1, head_dim)[:, at] = codes.view(
        torch.uint8
    ).transpose(0, 1)
    layer.exponents.view(2 * kv_heads, -1)[:, at] = exponents.transpose(0, 1)
