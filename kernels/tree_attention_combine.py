"""Put the partial results of `kernels.tree_attention` together.

``out = sum_s w_s out_s / sum_s w_s total_s`` with ``w_s = 2^(reference_s - max reference)``: the
weights of a part s are multiples of ``2^reference_s``, their sum is ``total_s`` and the sum of
values under them ``out_s``. The maximum is exact in any order; sums run over all far splits that
a row can have, in an order that is the same for every row, and end with the near part. How many
there are is a function of the row's position, and those that it does not have add exact zeros. All
of it is float32; the result is off by at most 2^-20 of the largest part, and 2^-8 of itself where
``out`` is bfloat16.

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

_VALUES_OF_WARP = 1024  # of parts, which a program holds all at once
_MOST_WARPS = 8


@dataclass(frozen=True, slots=True)
class Partials:
    """Memory between the two kernels: the near part, then far splits by number.

    A vector's place is its KV head, its row and its head among those that share the KV head, in
    this order: so those of a sequence and a KV head stand together.

    out: float32 [most_splits + 1, vectors, head_dim].
    reference, total: float32 [most_splits + 1, vectors].
    """

    out: Tensor
    reference: Tensor
    total: Tensor

    @classmethod
    def empty(
        cls, most_splits: int, rows: int, heads: int, head_dim: int, device: torch.device
    ) -> Partials:
        """``most_splits`` belongs to a deployment: rows' bits depend on it."""
        shape = (most_splits + 1, rows * heads)
        return cls(
            out=torch.empty(*shape, head_dim, dtype=torch.float32, device=device),
            reference=torch.empty(shape, dtype=torch.float32, device=device),
            total=torch.empty(shape, dtype=torch.float32, device=device),
        )

    def check(self, rows: int, heads: int, head_dim: int) -> None:
        """Raises ValueError unless it is memory for so many rows and heads."""
        shape = (len(self.reference), rows * heads)
        check_tensor("partials.out", self.out, (*shape, head_dim), torch.float32)
        check_tensor("partials.reference", self.reference, shape, torch.float32)
        check_tensor("partials.total", self.total, shape, torch.float32)

    @property
    def most_splits(self) -> int:
        return len(self.reference) - 1


def combine_partials(
    partials: Partials, rows: StepRows, out: Tensor, kv_heads: int, span: int
) -> None:
    """Write ``out`` [rows, heads, head_dim]; padding rows are left as they are."""
    count, heads, head_dim = out.shape
    parts = triton.next_power_of_2(partials.most_splits)
    width = triton.next_power_of_2(head_dim)
    early = starts_early(out.device)
    combine_partials_kernel[(count, heads)](
        partials.out,
        partials.reference,
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
    part_reference,
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
        near = (head // GROUP * rows + row) * GROUP + head % GROUP
        part = tl.arange(0, PARTS)
        held = part < tl.cdiv(spans, split_size_of(spans, MOST_SPLITS, SPAN))
        far = near + (part + 1) * (heads * rows)
        lane = tl.arange(0, WIDTH)
        inside = lane < HEAD_DIM
        some = tl.load(
            part_out + far[:, None] * HEAD_DIM + lane[None, :],
            mask=held[:, None] & inside[None, :],
            other=0.0,
        )
        own_values = tl.load(part_out + near * HEAD_DIM + lane, mask=inside, other=0.0)
        reference = tl.load(part_reference + far, mask=held, other=float("-inf"))
        own_reference = tl.load(part_reference + near)
        highest = tl.maximum(tl.max(reference, 0), own_reference)
        weights, weight = tl.exp2(reference - highest), tl.exp2(own_reference - highest)
        total = tl.sum(tl.load(part_total + far, mask=held, other=0.0) * weights, 0)
        total += tl.load(part_total + near) * weight
        values = tl.sum(some * weights[:, None], 0) + own_values * weight
        values = tl.div_rn(values, total)
        if out.dtype.element_ty == tl.bfloat16:
            values = to_bf16(values)
        tl.store(out + (row * heads + head) * HEAD_DIM + lane, values, mask=inside)
