"""Rows of the embedding, and their RMS norm: what a pass begins with.

For every row m: ``x[m] = embedding[token[m]]`` and ``y[m] = x[m] / sqrt(mean(x[m]^2) + eps)``, in
float32 before it is rounded once to bfloat16; the weight of the norm is part of the layer behind
it. Moves 6 H bytes per row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.e4m3 import to_bf16
from kernels.row_launch import checked_rows, row_warps
from kernels.slot_rows import check_column


def embed_norm(embedding: Tensor, token: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x and y, bfloat16 [rows, H].

    Args:
        embedding: bfloat16 [vocabulary, H].
        token: int64 [rows], adjacent or a column of a table.

    Raises:
        ValueError: a tensor has another shape or dtype.
    """
    checked_rows("embedding", embedding)
    check_column("token", token, len(token), token.stride(0), torch.int64)
    width = embedding.shape[1]
    x, y = embedding.new_empty((2, len(token), width))
    block = triton.next_power_of_2(width)
    _embed_norm[(len(token),)](
        embedding, token, x, y, token.stride(0), width, eps, BLOCK=block, num_warps=row_warps(block)
    )
    return x, y


@triton.jit
def _embed_norm(embedding, token, x, y, stride, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    source = embedding + tl.load(token + row * stride) * width
    held = tl.load(source + at, mask=inside, other=0.0)
    tl.store(x + row * width + at, held, mask=inside)
    wide = held.to(tl.float32)
    root = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    tl.store(y + row * width + at, to_bf16(wide * root), mask=inside)
