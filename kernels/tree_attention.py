"""Attention of the rows of ragged token trees over paged E4M3 keys and values.

``out = sum_i P_i v_i`` with ``P = softmax(q . k_i / sqrt(head_dim))`` over a row's committed
context, its ancestors and itself. q is bfloat16; codes are widened exactly; a key's power of two
scales its score, a value's its weight, then rounded to float16 (`kernels.attention_state`);
both products sum in float32.

**The same bits in any company.** A row's context is cut by its own position
(`kernels.attention_tiles`). Its last tiles are gathered along its own path, so that every token
stands where plain decoding has it (`kernels.attention_near`). The far tiles before them are read
once for all rows of a sequence, split by split (`kernels.attention_far`). Rows of one tree may
stand on both sides of a change of the splits' size; then both cuts are run. Partial results are put
together by `kernels.tree_attention_combine`. What a row does not see adds exact zeros. How many
splits a program takes, one after another, follows from what all sequences have; no row feels it.

Read per KV head: 2 (head_dim + 1) bytes per token of context, once per COLUMNS rows and heads,
and per token of a row's own tiles; partial results are 4 (head_dim + 2) bytes per row, head and
split, written and read. Against float64 on the dequantised values the error is at most
2^-11 sum_i P_i |v_i| and, per token, 2^-40 of the largest value or of 2^-71; and 2^-8 |out| more
where ``out`` is bfloat16. Where scores reach 2^20 it may be more; from 2^23 on a row may be NaN.

A launch may begin before the kernel ahead has ended (`kernels.early_start`). Until then it reads
rows, paths, tables and far keys and values, which no kernel of a step's layers writes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.attention_far import attend_far, piece_of
from kernels.attention_near import attend_near
from kernels.attention_state import COLUMNS
from kernels.attention_tiles import TILE, pieces_of, span_for
from kernels.early_start import begin, let_next_in, starts_early
from kernels.kv_layout import BLOCK, KVLayer, check_layer, dequantize
from kernels.tree_attention_combine import Partials, combine_partials
from kernels.tree_layout import StepRows

_LOG2_E = 1.4426950408889634
_FEWEST_LANES = 32  # one machine code for any number of slots up to it, and one for a single slot
_MOST_GROUP = 16  # query heads that share a KV head


def tree_attention(
    q: Tensor,
    layer: KVLayer,
    tables: Tensor,
    rows: StepRows,
    path: Tensor,
    partials: Partials,
    out: Tensor,
    most_rows: int,
    most_context: int,
) -> None:
    """Attend in one layer, whose entries of this step are written.

    Args:
        q: bfloat16 [rows, heads, head_dim]; a row with a value from 65,520 on is NaN.
        tables: int32 [slots, blocks]: block tables.
        rows: of the step; none stands more than TILE below its root.
        path: int32 [rows, longest]: local rows of a row's ancestors by depth, itself last; what
            follows is not read.
        out: bfloat16 or float32 [rows, heads, head_dim]; padding rows are left as they are.
        most_rows: no slot has more rows.
        most_context: no row stands at a higher position.

    Raises:
        ValueError: a tensor has another shape or dtype, or a bound is below 1.
    """
    _check(q, layer, tables, rows, path, partials, out)
    if most_rows < 1 or most_context < 1:
        raise ValueError(f"bounds must be at least 1: most_rows={most_rows}, {most_context=}")
    count, heads, head_dim = q.shape
    if count == 0:
        return
    _, kv_heads, blocks, _, _ = layer.codes.shape
    group, width = heads // kv_heads, triton.next_power_of_2(head_dim)
    span = span_for(width)
    shares = kv_heads * triton.cdiv(most_rows * group, COLUMNS)
    slots, near = len(tables), count * kv_heads
    pieces = pieces_of(most_context, partials.most_splits, slots, shares, near)
    far = shares * pieces
    early = starts_early(q.device)
    tree_attention_kernel[(far + near,)](
        q,
        layer.codes,
        layer.exponents,
        tables,
        rows.start,
        rows.count,
        rows.slot,
        rows.position,
        rows.depth,
        path,
        partials.out,
        partials.reference,
        partials.total,
        count,
        far,
        pieces,
        shares,
        slots,
        blocks * BLOCK,
        tables.stride(0),
        path.stride(0),
        head_dim**-0.5 * _LOG2_E,
        LANES=_lanes(slots),
        KV_HEADS=kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        WIDTH=width,
        SPAN=span,
        MOST_SPLITS=partials.most_splits,
        EARLY=early,
        launch_pdl=early,
        num_warps=4,
        num_stages=1,
        enable_fp_fusion=False,
    )
    combine_partials(partials, rows, out, kv_heads, span)


@triton.jit(do_not_specialize=["rows", "far", "pieces", "shares", "slots"])
def tree_attention_kernel(
    q, codes, exponents, tables, start, count, slot, position, depth, path,
    part_out, part_reference, part_total,
    rows, far, pieces, shares, slots, places, table_stride, path_stride, scale,
    LANES: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, MOST_SPLITS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """First ``far`` programs for what rows share, then one per row and KV head."""
    let_next_in(EARLY)
    program = tl.program_id(0)
    if program < far:
        own, piece, its_pieces = piece_of(
            start, count, position, program // shares, pieces, slots, LANES, SPAN
        )
        if own < slots:
            attend_far(
                q, codes, exponents, tables, start, count, position,
                part_out, part_reference, part_total,
                own, piece, its_pieces, program % shares,
                rows, shares, places, table_stride, scale,
                KV_HEADS, GROUP, HEAD_DIM, WIDTH, SPAN, MOST_SPLITS, EARLY,
            )  # fmt: skip
    else:
        program -= far
        attend_near(
            q, codes, exponents, tables, slot, position, depth, path,
            part_out, part_reference, part_total,
            program // KV_HEADS, program % KV_HEADS, rows, places,
            table_stride, path_stride, scale,
            KV_HEADS, GROUP, HEAD_DIM, WIDTH, 2 * SPAN, EARLY,
        )  # fmt: skip
    begin(EARLY)  # those that have nothing to do wait, too: what comes behind counts on it


def tree_attention_reference(
    q: Tensor, layer: KVLayer, tables: Tensor, rows: StepRows, path: Tensor
) -> Tensor:
    """`tree_attention` row by row in float64, zeros for padding: [rows, heads, head_dim]."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    group = q.shape[1] // layer.codes.shape[1]
    for row in (rows.slot >= 0).nonzero().flatten().tolist():
        depth = int(rows.depth[row])
        context = int(rows.position[row]) - depth
        slots = torch.arange(context + depth + 1, device=q.device)
        slots[context:] = context + path[row, : depth + 1]
        table = tables[rows.slot[row]].long()
        place = table[slots // BLOCK] * BLOCK + slots % BLOCK
        codes = layer.codes.view(torch.uint8).flatten(2, 3)[:, :, place]
        exponents = layer.exponents.flatten(2, 3)[:, :, place]
        keys, values = dequantize(codes.view(torch.float8_e4m3fn), exponents, torch.float64)
        queries = q[row].double().unflatten(0, (-1, group))
        weights = (queries @ keys.mT * q.shape[2] ** -0.5).softmax(dim=-1)
        out[row] = (weights @ values).flatten(0, 1)
    return out


def _lanes(slots: int) -> int:
    """How many slots a program looks at to find its own."""
    lanes: int = triton.next_power_of_2(slots)
    return max(lanes, _FEWEST_LANES) if slots > 1 else 1


def _check(
    q: Tensor,
    layer: KVLayer,
    tables: Tensor,
    rows: StepRows,
    path: Tensor,
    partials: Partials,
    out: Tensor,
) -> None:
    check_layer(layer)
    count, heads, head_dim = q.shape
    _, kv_heads, blocks, _, layer_head_dim = layer.codes.shape
    if heads % kv_heads or not 1 <= heads // kv_heads <= _MOST_GROUP:
        allowed = f"1 to {_MOST_GROUP} times the {kv_heads} KV heads"
        raise ValueError(f"heads of q must be {allowed}, not {heads}")
    check_tensor("q", q, (count, heads, layer_head_dim), torch.bfloat16)
    check_tensor("out", out, q.shape, torch.float32 if out.dtype.itemsize == 4 else torch.bfloat16)
    check_tensor("tables", tables, (len(rows.start), tables.shape[-1]), torch.int32)
    for name in ("start", "count"):
        check_tensor(f"rows.{name}", getattr(rows, name), (len(tables),), torch.int32)
    for name in ("slot", "position", "depth"):
        check_tensor(f"rows.{name}", getattr(rows, name), (count,), torch.int32)
    check_tensor("path", path, (count, path.shape[-1]), torch.int32)
    if path.shape[1] > TILE + 1:
        raise ValueError(f"path must have at most {TILE + 1} columns, not {path.shape[1]}")
    partials.check(count, heads, head_dim)
    if max(blocks * BLOCK * head_dim, partials.out.numel()) >= 2**31:
        raise ValueError("a KV head and the partial results must have less than 2^31 values each")
