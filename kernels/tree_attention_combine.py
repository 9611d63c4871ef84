"""Put the partial results of `kernels.tree_attention` together, in the order of positions.

``out = sum_s w_s out_s / sum_s w_s total_s`` with ``w_s = 2^(top_s - max top)``, where a part s has
the highest score ``top_s`` (in powers of two), ``total_s = sum 2^(score - top_s)`` and the sum
``out_s`` of values under the same weights. The maximum is exact in any order; sums run over the far
splits, eight at a time, and end with the near part. How many there are is a function of the row's
position, and parts that a row does not have add exact zeros. All of it is float32; the result is
off by at most 2^-20 of the largest part, and 2^-9 of itself where ``out`` is bfloat16.

Read per row and head: 4 (head_dim + 3) bytes per part; written: head_dim values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.attention_tiles import far_tiles_of, split_size_of
from kernels.e4m3 import to_bf16
from kernels.tree_layout import StepRows

_TOGETHER = tl.constexpr(8)


@dataclass(frozen=True, slots=True)
class Partials:
    """Memory between the two kernels: far splits by number, then the near part.

    out: float32 [most_splits + 1, rows, heads, head_dim].
    top, total: float32 [most_splits + 1, rows, heads].
    """

    out: Tensor
    top: Tensor
    total: Tensor

    @classmethod
    def empty(
        cls, most_splits: int, rows: int, heads: int, head_dim: int, device: torch.device
    ) -> Partials:
        """``most_splits`` belongs to a deployment: rows' bits depend on it."""
        shape = (most_splits + 1, rows, heads)
        return cls(
            out=torch.empty(*shape, head_dim, dtype=torch.float32, device=device),
            top=torch.empty(shape, dtype=torch.float32, device=device),
            total=torch.empty(shape, dtype=torch.float32, device=device),
        )

    def check(self, rows: int, heads: int, head_dim: int) -> None:
        """Raises ValueError unless it is memory for so many rows and heads."""
        shape = (len(self.top), rows, heads)
        check_tensor("partials.out", self.out, (*shape, head_dim), torch.float32)
        check_tensor("partials.top", self.top, shape, torch.float32)
        check_tensor("partials.total", self.total, shape, torch.float32)

    @property
    def most_splits(self) -> int:
        return len(self.top) - 1


def combine_partials(partials: Partials, rows: StepRows, out: Tensor) -> None:
    """Write ``out`` [rows, heads, head_dim]; padding rows are left as they are."""
    count, heads, head_dim = out.shape
    combine_partials_kernel[(count, heads)](
        partials.out,
        partials.top,
        partials.total,
        rows.slot,
        rows.position,
        out,
        count,
        HEAD_DIM=head_dim,
        WIDTH=triton.next_power_of_2(head_dim),
        MOST_SPLITS=partials.most_splits,
        PARTS=triton.next_power_of_2(partials.most_splits + 1),
        num_warps=2,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["rows"])
def combine_partials_kernel(
    part_out,
    part_top,
    part_total,
    slot,
    position,
    out,
    rows,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One program per row and head."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(slot + row) >= 0:
        heads = tl.num_programs(1).to(tl.int64)
        stride = heads * rows
        place = row * heads + head
        far = far_tiles_of(tl.load(position + row))
        splits = tl.cdiv(far, split_size_of(far, MOST_SPLITS))
        part = tl.arange(0, PARTS)
        held = (part < splits) | (part == MOST_SPLITS)
        top = tl.load(part_top + place + part * stride, mask=held, other=float("-inf"))
        total = tl.load(part_total + place + part * stride, mask=held, other=0.0)
        highest = tl.max(top, 0)
        total = tl.sum(tl.exp2(top - highest) * total, 0)

        lane = tl.arange(0, WIDTH)
        inside = lane < HEAD_DIM
        values = tl.zeros([WIDTH], tl.float32)
        for first in range(0, splits, _TOGETHER):
            several = first + tl.arange(0, _TOGETHER)
            far_ones = several < splits
            at = place + several * stride
            weights = tl.exp2(tl.load(part_top + at, mask=far_ones, other=float("-inf")) - highest)
            some = tl.load(
                part_out + at[:, None] * HEAD_DIM + lane[None, :],
                mask=far_ones[:, None] & inside[None, :],
                other=0.0,
            )
            values += tl.sum(some * weights[:, None], 0)
        near = place + MOST_SPLITS * stride
        weight = tl.exp2(tl.load(part_top + near) - highest)
        values += tl.load(part_out + near * HEAD_DIM + lane, mask=inside, other=0.0) * weight
        values = tl.div_rn(values, total)
        if out.dtype.element_ty == tl.bfloat16:
            values = to_bf16(values)
        tl.store(out + place * HEAD_DIM + lane, values, mask=inside)
