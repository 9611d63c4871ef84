"""Weights on their way to the cache that all processors share, beside kernels that need no memory.

The first ``columns`` of every ``slice`` columns of ``weight [N, K]`` are fetched, in no order that
matters, and nothing is written: no bit depends on it. Attention over a short context leaves the
memory idle; over a long one it needs all of it, and what was fetched would be gone from the cache
before it is read. So nothing is fetched where sequences have more than ``most_context`` committed
tokens together, which is looked up on the device. sm_90 only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.early_start import bring_near, starts_early
from kernels.skinny_gemm import is_aligned
from kernels.skinny_table import tiling_for
from kernels.tree_layout import StepRows

_PROGRAMS = 64
_WIDTH = 32


@triton.jit
def _fetch_weights(
    weight, N, K, slice_columns, columns, starts, counts, positions, slots, most_context,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    slot = tl.arange(0, SLOTS)
    active = tl.load(counts + slot, mask=slot < slots, other=0) > 0
    first_row = tl.load(starts + slot, mask=active, other=0)
    context = tl.sum(tl.load(positions + first_row, mask=active, other=0), 0)
    pairs = N * tl.cdiv(K, slice_columns)
    pairs = tl.where(context > most_context, 0, pairs)
    for first in range(tl.program_id(0) * WIDTH, pairs, tl.num_programs(0) * WIDTH):
        pair = first + tl.arange(0, WIDTH)
        start = pair // N * slice_columns
        count = tl.where(pair < pairs, tl.minimum(columns, K - start), 0)
        size = count * (weight.dtype.element_ty.primitive_bitwidth // 8)
        bring_near(weight + (pair % N).to(tl.int64) * K + start, size)


def fetch_weights(
    operands: str, weight: torch.Tensor, rows: StepRows, most_bytes: int, most_context: int
) -> bool:
    """Fetch up to ``most_bytes`` of the weights of a skinny product; whether anything may be.

    Every slice of the product's K begins with as much.
    """
    n, k = weight.shape
    if not (starts_early(weight.device) and is_aligned(weight)):
        return False
    tiling = tiling_for(operands, n, k)
    width = triton.cdiv(triton.cdiv(k, tiling.block_k), tiling.splits) * tiling.block_k
    room = most_bytes // (n * triton.cdiv(k, width) * weight.element_size())
    slots = len(rows.start)
    _fetch_weights[(_PROGRAMS,)](
        weight,
        n,
        k,
        width,
        min(width, room // 16 * 16),
        rows.start,
        rows.count,
        rows.position,
        slots,
        most_context,
        SLOTS=triton.next_power_of_2(slots),
        WIDTH=_WIDTH,
        num_warps=1,
    )
    return True
