"""What the rows of a sequence share in `kernels.tree_attention`: far tiles, split by split."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention_state import (
    COLUMNS,
    add_span,
    bring_vectors_near,
    highest_power_of_words,
    load_exponent_words,
    load_exponents,
    load_queries,
    load_vectors,
    nothing_seen,
    pack_powers,
    plane_of,
    store_partials,
    widened,
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

    Of ``pieces`` each slot has one, and of the rest its part by the length of its context, rounded
    down. If there is no such piece, the slot is one that is not there.
    """
    if LANES == 1:
        return number * 0, number, pieces
    else:
        slot = tl.arange(0, LANES)
        active = tl.load(count + slot, mask=slot < slots, other=0) > 0
        root = tl.load(start + slot, mask=active, other=0)
        tiles = tl.load(position + root, mask=active, other=0) // _TILE + 1
        spans = tl.where(active, spans_of(tiles, SPAN), 0)
        more = spans * (pieces - slots) // tl.maximum(tl.sum(spans, 0), 1)
        own_pieces = tl.where(active, more + 1, 0)
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
    smallest = split_size_of(spans_of(fewest, SPAN), MOST_SPLITS, SPAN)
    largest = split_size_of(spans_of(tl.max(far, 0), SPAN), MOST_SPLITS, SPAN)
    sizes = split_size_of(spans_of(far, SPAN), MOST_SPLITS, SPAN)
    table = tables + own * table_stride
    keys, key_exponents = plane_of(codes, exponents, head, places, HEAD_DIM)
    values, value_exponents = plane_of(codes, exponents, KV_HEADS + head, places, HEAD_DIM)
    for size in range(smallest, largest + 1):
        mine = spans_of(tl.where(used & (sizes == size), far, 0), SPAN)
        spans = tl.max(mine, 0)
        splits = tl.cdiv(spans, size)
        split = splits * piece // pieces
        first = split * size
        end = tl.minimum(splits * (piece + 1) // pieces * size, spans)
        if first < end:
            # What is loaded for a span has its address from the turn before: no load waits for one.
            blocks = _blocks_of(table, first, end, SPAN)
            k, v, k_exponents, v_exponents, words = _load_span(
                keys, values, key_exponents, value_exponents, blocks, True, HEAD_DIM, WIDTH, SPAN
            )
            b0, b1, b2, b3 = _blocks_of(table, first + 1, end, SPAN)
            if EARLY:
                place = _places_of((b0, b1, b2, b3), SPAN)
                bring_vectors_near(keys, place, first + 1 < end, HEAD_DIM)
                bring_vectors_near(values, place, first + 1 < end, HEAD_DIM)
            begin(EARLY)
            vector = (row * KV_HEADS + head) * GROUP + column % GROUP
            queries = load_queries(q, vector, used, HEAD_DIM, WIDTH)
            at = base + (split + 1) * vectors
            for opened in range(first, end, size):
                top, peak, reference, total, out = nothing_seen(WIDTH)
                for span in range(opened, tl.minimum(opened + size, end)):
                    own_k, own_v = widened(k, SPAN, WIDTH), widened(v, SPAN, WIDTH)
                    powers = pack_powers(k_exponents, v_exponents)
                    highest = highest_power_of_words(words)
                    scores = tl.dot(queries, tl.trans(own_k))
                    # Not before the product, as whatever is on its way is waited for there.
                    blocks = b0, b1, b2, b3
                    k, v, k_exponents, v_exponents, words = _load_span(
                        keys, values, key_exponents, value_exponents, blocks, span + 1 < end,
                        HEAD_DIM, WIDTH, SPAN,
                    )  # fmt: skip
                    b0, b1, b2, b3 = _blocks_of(table, span + 2, end, SPAN)
                    top, peak, reference, total, out = add_span(
                        top, peak, reference, total, out,
                        scores, scale, own_v, powers, highest, span < mine, None,
                    )  # fmt: skip
                store_partials(
                    part_out, part_reference, part_total, at, reference, total, out,
                    opened < mine, HEAD_DIM, WIDTH,
                )  # fmt: skip
                at += vectors


@triton.jit
def _load_span(
    keys, values, key_exponents, value_exponents, blocks, seen,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Keys, values and their exponents, those of values also as words, if they are seen."""
    number, inner = tl.arange(0, SPAN // _BLOCK), tl.arange(0, _BLOCK)
    vector = _block_of(blocks, number[:, None, None]) * _BLOCK + inner[None, :, None]
    k = load_vectors(keys, vector, seen, HEAD_DIM, WIDTH)
    v = load_vectors(values, vector, seen, HEAD_DIM, WIDTH)
    place = _places_of(blocks, SPAN)
    k_exponents = load_exponents(key_exponents, place, seen)
    v_exponents = load_exponents(value_exponents, place, seen)
    words = load_exponent_words(value_exponents, _block_of(blocks, number[:, None]), seen)
    return k, v, k_exponents, v_exponents, words


@triton.jit
def _blocks_of(table, span, end, SPAN: tl.constexpr):
    """The numbers of a span's blocks, 0 from ``end`` on: four, or two of them twice.

    Each thread has all of them, as they are wanted in several orders.
    """
    at, ahead = table + span * (SPAN // _BLOCK), span < end
    first, second = tl.load(at, mask=ahead, other=0), tl.load(at + 1, mask=ahead, other=0)
    third, fourth = first, second
    if SPAN > 2 * _BLOCK:
        third, fourth = tl.load(at + 2, mask=ahead, other=0), tl.load(at + 3, mask=ahead, other=0)
    return first, second, third, fourth


@triton.jit
def _block_of(blocks, number):
    """Those of a span's blocks that have these numbers in it."""
    first, second, third, fourth = blocks
    front, back = tl.where(number == 0, first, second), tl.where(number == 2, third, fourth)
    return tl.where(number < 2, front, back)


@triton.jit
def _places_of(blocks, SPAN: tl.constexpr):
    """Places in the pool of a span's tokens: [blocks, BLOCK]."""
    number, inner = tl.arange(0, SPAN // _BLOCK), tl.arange(0, _BLOCK)
    return _block_of(blocks, number[:, None]) * _BLOCK + inner[None, :]
