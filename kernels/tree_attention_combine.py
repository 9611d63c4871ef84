"""Put the partial results of `kernels.tree_attention` together, in the order of positions.

``out = sum_s w_s out_s / sum_s w_s total_s`` with ``w_s = 2^(top_s - max top)``, where a part s has
the highest score ``top_s`` (in powers of two), ``total_s = sum 2^(score - top_s)`` and the sum
``out_s`` of values under the same weights. The maximum is exact in any order; sums run over all the
parts that a row can have, in an order that is the same for every row. How many it has is a function
of its position, and parts that it does not have add exact zeros. All of it is float32; the result
is off by at most 2^-20 of the largest part, and 2^-9 of itself where ``out`` is bfloat16.

Read per row and head: 4 (head_dim + 2) bytes per part; written: head_dim values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.attention_tiles import far_tiles_of, spans_of, split_size_of
from kernels.e4m3 import to_bf16
from kernels.early_start import begin, let_next_in, starts_early
from kernels.tree_layout import StepRows

_VALUES_OF_WARP = 2048  # of parts, which a program holds all at once
_MOST_WARPS = 8


@dataclass(frozen=True, slots=True)
class Partials:
    """Memory between the two kernels: the near part, then far splits by number.

    A vector's place is its KV head, its row and its head among those that share the KV head, in
    this order: so those of a sequence and a KV head stand together.

    out: float32 [most_splits + 1, vectors, head_dim].
    top, total: float32 [most_splits + 1, vectors].
    """

    out: Tensor
    top: Tensor
    total: Tensor

    @classmethod
    def empty(
        cls, most_splits: int, rows: int, heads: int, head_dim: int, device: torch.device
    ) -> Partials:
        """``most_splits`` belongs to a deployment: rows' bits depend on it."""
        shape = (most_splits + 1, rows * heads)
        return cls(
            out=torch.empty(*shape, head_dim, dtype=torch.float32, device=device),
            top=torch.empty(shape, dtype=torch.float32, device=device),
            total=torch.empty(shape, dtype=torch.float32, device=device),
        )

    def check(self, rows: int, heads: int, head_dim: int) -> None:
        """Raises ValueError unless it is memory for so many rows and heads."""
        shape = (len(self.top), rows * heads)
        check_tensor("partials.out", self.out, (*shape, head_dim), torch.float32)
        check_tensor("partials.top", self.top, shape, torch.float32)
        check_tensor("partials.total", self.total, shape, torch.float32)

    @property
    def most_splits(self) -> int:
        return len(self.top) - 1


def combine_partials(
    partials: Partials, rows: StepRows, out: Tensor, kv_heads: int, span: int
) -> None:
    """Write ``out`` [rows, heads, head_dim]; padding rows are left as they are."""
    count, heads, head_dim = out.shape
    parts = triton.next_power_of_2(partials.most_splits + 1)
    width = triton.next_power_of_2(head_dim)
    early = starts_early(out.device)
    combine_partials_kernel[(count, heads)](
        partials.out,
        partials.top,
        partials.total,
        rows.slot,
        rows.position,
        out,
        count,
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        WIDTH=width,
        SPAN=span,
        MOST_SPLITS=partials.most_splits,
        PARTS=parts,
        EARLY=early,
        launch_pdl=early,
        num_warps=min(max(parts * width // _VALUES_OF_WARP, 1), _MOST_WARPS),
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
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program per row and head."""
    let_next_in(EARLY)
    row, head = tl.program_id(0), tl.program_id(1)
    own, last = tl.load(slot + row), tl.load(position + row)
    begin(EARLY)
    if own >= 0:
        heads = tl.num_programs(1)
        spans = spans_of(far_tiles_of(last), SPAN)
        part = tl.arange(0, PARTS)
        held = part <= tl.cdiv(spans, split_size_of(spans, MOST_SPLITS))
        place = (head // GROUP * rows + row) * GROUP + head % GROUP
        at = place + part * (heads * rows)
        lane = tl.arange(0, WIDTH)
        inside = lane < HEAD_DIM
        some = tl.load(
            part_out + at[:, None] * HEAD_DIM + lane[None, :],
            mask=held[:, None] & inside[None, :],
            other=0.0,
        )
        top = tl.load(part_top + at, mask=held, other=float("-inf"))
        weights = tl.exp2(top - tl.max(top, 0))
        total = tl.sum(tl.load(part_total + at, mask=held, other=0.0) * weights, 0)
        values = tl.div_rn(tl.sum(some * weights[:, None], 0), total)
        if out.dtype.element_ty == tl.bfloat16:
            values = to_bf16(values)
        tl.store(out + (row * heads + head) * HEAD_DIM + lane, values, mask=inside)
