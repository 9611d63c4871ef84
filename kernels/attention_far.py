"""What the rows of a sequence share in `kernels.tree_attention`: far tiles, split by split."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention_state import (
    COLUMNS,
    add_span,
    bring_vectors_near,
    idle_columns,
    largest_power,
    load_powers,
    load_queries,
    load_vectors,
    nothing_seen,
    plane_of,
    store_partials,
)
from kernels.attention_tiles import TILE, far_tiles_of, spans_of, split_size_of
from kernels.early_start import begin
from kernels.kv_layout import BLOCK

_TILE, _COLUMNS, _BLOCK = tl.constexpr(TILE), tl.constexpr(COLUMNS), tl.constexpr(BLOCK)


@triton.jit
def piece_of(
    start, count, position, number, pieces, slots,
    LANES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """What program ``number`` of a share takes: a slot, which piece of it, and of how many.

    Of ``pieces`` each slot gets its part by the length of its context, rounded up: ``slots - 1``
    more at most. If there is no such piece, the slot is one that is not there.
    """
    if LANES == 1:
        return number * 0, number, pieces
    else:
        slot = tl.arange(0, LANES)
        active = tl.load(count + slot, mask=slot < slots, other=0) > 0
        root = tl.load(start + slot, mask=active, other=0)
        tiles = tl.load(position + root, mask=active, other=0) // _TILE + 1
        spans = tl.where(active, spans_of(tiles, SPAN), 0)
        own_pieces = tl.cdiv(spans * pieces, tl.maximum(tl.sum(spans, 0), 1))
        ends = tl.cumsum(own_pieces, 0)
        before = ends <= number
        own = tl.sum(before.to(tl.int32), 0)
        piece = number - tl.max(tl.where(before, ends, 0), 0)
        return own, piece, tl.sum(tl.where(slot == own, own_pieces, 0), 0)


@triton.jit
def attend_far(
    q, codes, exponents, tables, start, count, position,
    part_out, part_reference, part_total,
    own, piece, pieces, share,
    rows, shares, places, table_stride, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    SPAN: tl.constexpr, MOST_SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The splits of a slot in one of ``pieces``, for COLUMNS of those that share a KV head.

    Of what this step's layers write only queries are read here: all else is looked up before
    `begin`, and the first keys and values are on their way.
    """
    head, part = share // (shares // KV_HEADS), share % (shares // KV_HEADS)
    column = part * _COLUMNS + tl.arange(0, _COLUMNS)
    its_rows, root = tl.load(count + own), tl.load(start + own)
    used = column // GROUP < its_rows
    row = root + column // GROUP
    base = (head * rows + root) * GROUP + part * _COLUMNS
    vectors = rows * (KV_HEADS * GROUP)
    far = far_tiles_of(tl.load(position + row, mask=used, other=0))
    # No row stands above its root, and sizes grow with positions.
    fewest = far_tiles_of(tl.load(position + root, mask=its_rows > 0, other=0))
    smallest = split_size_of(spans_of(fewest, SPAN), MOST_SPLITS)
    largest = split_size_of(spans_of(tl.max(far, 0), SPAN), MOST_SPLITS)
    sizes = split_size_of(spans_of(far, SPAN), MOST_SPLITS)
    table = tables + own * table_stride
    keys, key_exponents = plane_of(codes, exponents, head, places, HEAD_DIM)
    values, value_exponents = plane_of(codes, exponents, KV_HEADS + head, places, HEAD_DIM)
    inner = tl.arange(0, SPAN) % _BLOCK
    for size in range(smallest, largest + 1):
        mine = tl.where(used & (sizes == size), far, 0)
        tiles = tl.max(mine, 0)
        spans = spans_of(tiles, SPAN)
        splits = tl.cdiv(spans, size)
        split = splits * piece // pieces
        first = split * size
        end = tl.minimum(splits * (piece + 1) // pieces * size, spans)
        if first < end:
            # What is loaded for a span has its address from the turn before: no load waits for one.
            seen = _tiles_of(first, SPAN) < tiles
            place = _blocks_of(table, first, tiles, SPAN) * _BLOCK + inner
            if EARLY:
                bring_vectors_near(keys, place, seen, HEAD_DIM)
                bring_vectors_near(values, place, seen, HEAD_DIM)
            powers = load_powers(key_exponents, value_exponents, place, seen)
            block = _blocks_of(table, first + 1, tiles, SPAN)
            if EARLY:
                then = (_tiles_of(first + 1, SPAN) < tiles) & (first + 1 < end)
                bring_vectors_near(keys, block * _BLOCK + inner, then, HEAD_DIM)
                bring_vectors_near(values, block * _BLOCK + inner, then, HEAD_DIM)
            begin(EARLY)
            vector = (row * KV_HEADS + head) * GROUP + column % GROUP
            queries = load_queries(q, vector, used, HEAD_DIM, WIDTH)
            idle = idle_columns(mine > 0)
            top, peak, reference, total, out = nothing_seen(WIDTH)
            opened, stop = first, tl.minimum(first + size, end)
            at = base + (split + 1) * vectors
            for span in range(first, end):
                tile = _tiles_of(span, SPAN)
                k = load_vectors(keys, place, tile < tiles, HEAD_DIM, WIDTH)
                v = load_vectors(values, place, tile < tiles, HEAD_DIM, WIDTH)
                own_powers = powers
                place = block * _BLOCK + inner
                powers = load_powers(
                    key_exponents, value_exponents, place, _tiles_of(span + 1, SPAN) < tiles
                )
                block = _blocks_of(table, span + 2, tiles, SPAN)
                whole = (span + 1) * SPAN <= fewest * _TILE
                visible = tile[None, :] < mine[:, None]
                highest = _highest_power(own_powers, span, mine, whole, SPAN)
                top, peak, reference, total, out = add_span(
                    top, peak, reference, total, out,
                    queries, scale, idle, k, v, own_powers, highest, whole, visible,
                )  # fmt: skip
                if span + 1 == stop:
                    sees = mine > opened * SPAN // _TILE
                    store_partials(
                        part_out, part_reference, part_total, at, reference, total, out, sees,
                        HEAD_DIM, WIDTH,
                    )  # fmt: skip
                    top, peak, reference, total, out = nothing_seen(WIDTH)
                    opened = stop
                    stop = tl.minimum(stop + size, end)
                    at += vectors


@triton.jit
def _tiles_of(span, SPAN: tl.constexpr):
    """The tile of each token of a span."""
    return span * SPAN // _TILE + tl.arange(0, SPAN) // _TILE


@triton.jit
def _blocks_of(table, span, tiles, SPAN: tl.constexpr):
    """The block of each token of a span; 0 behind the far tiles."""
    at = table + span * SPAN // _BLOCK + tl.arange(0, SPAN) // _BLOCK
    return tl.load(at, mask=_tiles_of(span, SPAN) < tiles, other=0)


@triton.jit
def _highest_power(powers, span, mine, whole, SPAN: tl.constexpr):
    """The largest of the values' powers that a column sees: [columns]."""
    tile = _tiles_of(span, SPAN)
    highest = tl.zeros([_COLUMNS], tl.int32)
    if whole:
        highest += largest_power(powers, tile >= 0)
    else:
        for which in tl.static_range((SPAN + _TILE - 1) // _TILE):
            one = span * SPAN // _TILE + which
            some = largest_power(powers, tile == one)
            highest = tl.maximum(highest, tl.where(one < mine, some, 0))
    return highest
