"""Attention of the rows of ragged token trees over paged E4M3 keys and values.

``out = sum_i P_i v_i`` with ``P = softmax(q . k_i / sqrt(head_dim))`` over a row's committed
context, its ancestors and itself. q is bfloat16; codes are widened exactly; a key's power of two
scales its score, a value's its weight, which is then rounded to bfloat16; both products sum in
float32.

**The same bits in any company.** A row's context is cut by its own position
(`kernels.attention_tiles`). Its last tiles are gathered along its own path, so that every token
stands where plain decoding has it. The far tiles before them are read once for all rows of a
sequence, split by split. Rows of one tree may stand on both sides of a change of the splits' size;
then both cuts are run. Partial results are put together in the order of positions
(`kernels.tree_attention_combine`). What a row does not see adds exact zeros.

Read per KV head: 2 (head_dim + 1) bytes per token of context, once per MOST_COLUMNS rows and heads,
and per token of a row's own tiles; partial results are 4 (head_dim + 2) bytes per row, head and
split, written and read. Against float64 on the dequantised values the error is at most
2^-8 sum_i P_i |v_i|, and 2^-8 |out| more where ``out`` is bfloat16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.attention_state import add_tile, load_queries, nothing_seen, store_partials
from kernels.attention_tiles import TILE, far_tiles_of, most_splits_of, split_size_of
from kernels.kv_layout import BLOCK, KVLayer, check_layer, dequantize, place_of
from kernels.tree_attention_combine import Partials, combine_partials
from kernels.tree_layout import StepRows

MOST_COLUMNS = 64  # of a program; with 128 registers spill within the loop
_FEWEST_COLUMNS = 16
_LOG2_E = 1.4426950408889634

_TILE, _NARROW = tl.constexpr(TILE), tl.constexpr(_FEWEST_COLUMNS)
_NO_SIZE = tl.constexpr(2**30)


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
        q: bfloat16 [rows, heads, head_dim].
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
    group = heads // kv_heads
    columns = min(max(triton.next_power_of_2(most_rows * group), _FEWEST_COLUMNS), MOST_COLUMNS)
    shares = kv_heads * triton.cdiv(most_rows * group, columns)
    splits = most_splits_of(most_context, partials.most_splits)
    tree_attention_kernel[(count * kv_heads + splits * shares * len(tables),)](
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
        partials.top,
        partials.total,
        count,
        splits,
        shares,
        blocks * BLOCK,
        tables.stride(0),
        path.stride(0),
        head_dim**-0.5 * _LOG2_E,
        KV_HEADS=kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        WIDTH=triton.next_power_of_2(head_dim),
        COLUMNS=columns,
        MOST_SPLITS=partials.most_splits,
        num_warps=4,
        num_stages=3,
        enable_fp_fusion=False,
    )
    combine_partials(partials, rows, out)


@triton.jit(do_not_specialize=["rows", "splits", "shares"])
def tree_attention_kernel(
    q, codes, exponents, tables, start, count, slot, position, depth, path,
    part_out, part_top, part_total,
    rows, splits, shares, places, table_stride, path_stride, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr, MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    """First a program per row and KV head, then one per slot, split, KV head and columns."""
    program = tl.program_id(0)
    if program < rows * KV_HEADS:
        _attend_near(
            q, codes, exponents, tables, slot, position, depth, path,
            part_out, part_top, part_total,
            program // KV_HEADS, program % KV_HEADS,
            rows, places, table_stride, path_stride, scale,
            KV_HEADS, GROUP, HEAD_DIM, WIDTH, MOST_SPLITS,
        )  # fmt: skip
    else:
        program -= rows * KV_HEADS
        _attend_far(
            q, codes, exponents, tables, start, count, position,
            part_out, part_top, part_total,
            program // shares // splits, program // shares % splits, program % shares,
            rows, shares, places, table_stride, scale,
            KV_HEADS, GROUP, HEAD_DIM, WIDTH, COLUMNS, MOST_SPLITS,
        )  # fmt: skip


@triton.jit
def _attend_near(
    q, codes, exponents, tables, slot, position, depth, path,
    part_out, part_top, part_total,
    row, head,
    rows, places, table_stride, path_stride, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    """The last tiles of one row, along its own path."""
    own = tl.load(slot + row)
    if own >= 0:
        column = tl.arange(0, _NARROW)
        used = column < GROUP
        vector = (row * KV_HEADS + head) * GROUP + column
        queries, factor = load_queries(q, vector, used, HEAD_DIM, WIDTH)
        key_exponents, value_exponents = _planes(exponents, head, places, KV_HEADS)
        keys, values = _planes(codes, head, places * HEAD_DIM, KV_HEADS)
        last = tl.load(position + row)
        context = last - tl.load(depth + row)
        top, total, out = nothing_seen(_NARROW, WIDTH)
        for tile in range(far_tiles_of(last), last // _TILE + 1):
            at = tile * _TILE + tl.arange(0, _TILE)
            seen = at <= last
            guessed = seen & (at >= context)
            local = tl.load(path + row * path_stride + at - context, mask=guessed, other=0)
            at = tl.where(guessed, context + local, at)
            place = place_of(tables + own * table_stride, at, seen, True)
            top, total, out = add_tile(
                top, total, out,
                queries, factor * scale, keys, key_exponents, values, value_exponents,
                place, seen, seen[:, None], True, HEAD_DIM, WIDTH,
            )  # fmt: skip
        vector += MOST_SPLITS * rows * (KV_HEADS * GROUP)
        store_partials(
            part_out, part_top, part_total, vector, used, top, total, out, HEAD_DIM, WIDTH
        )


@triton.jit
def _attend_far(
    q, codes, exponents, tables, start, count, position,
    part_out, part_top, part_total,
    own, split, share,
    rows, shares, places, table_stride, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr, MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    """One split of a slot's far tiles, for COLUMNS of the rows and heads that share a KV head."""
    head, part = share // (shares // KV_HEADS), share % (shares // KV_HEADS)
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    used = column // GROUP < tl.load(count + own)
    row = tl.load(start + own) + column // GROUP
    far = far_tiles_of(tl.load(position + row, mask=used, other=0))
    sizes = split_size_of(far, MOST_SPLITS)
    smallest = tl.min(tl.where(used, sizes, _NO_SIZE), 0)
    largest = tl.max(tl.where(used, sizes, 0), 0)
    for size in range(smallest, largest + 1):
        first = split * size
        mine = used & (sizes == size) & (first < far)
        end = tl.minimum(first + size, tl.max(tl.where(mine, far, 0), 0))
        if first < end:
            vector = (row * KV_HEADS + head) * GROUP + column % GROUP
            queries, factor = load_queries(q, vector, mine, HEAD_DIM, WIDTH)
            key_exponents, value_exponents = _planes(exponents, head, places, KV_HEADS)
            keys, values = _planes(codes, head, places * HEAD_DIM, KV_HEADS)
            top, total, out = nothing_seen(COLUMNS, WIDTH)
            for tile in range(first, end):
                at = tile * _TILE + tl.arange(0, _TILE)
                place = place_of(tables + own * table_stride, at, None, False)
                top, total, out = add_tile(
                    top, total, out,
                    queries, factor * scale, keys, key_exponents, values, value_exponents,
                    place, None, (tile < far)[None, :], False, HEAD_DIM, WIDTH,
                )  # fmt: skip
            vector += split * rows * (KV_HEADS * GROUP)
            store_partials(
                part_out, part_top, part_total, vector, mine, top, total, out, HEAD_DIM, WIDTH
            )


@triton.jit
def _planes(pointer, head, size, KV_HEADS: tl.constexpr):
    """Where the keys and the values of a KV head begin."""
    keys = pointer + head.to(tl.int64) * size
    return keys, keys + KV_HEADS * size.to(tl.int64)


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
    if heads % kv_heads or not 1 <= heads // kv_heads <= _FEWEST_COLUMNS:
        allowed = f"1 to {_FEWEST_COLUMNS} times the {kv_heads} KV heads"
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
