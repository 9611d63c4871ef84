"""What a row sees by itself in `kernels.tree_attention`: its last tiles, along its own path."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention_state import (
    COLUMNS,
    add_span,
    bring_vectors_near,
    highest_power,
    load_exponents,
    load_queries,
    load_vectors,
    nothing_seen,
    pack_powers,
    plane_of,
    store_partials,
    widened,
)
from kernels.attention_tiles import NEAR, TILE, far_tiles_of
from kernels.early_start import begin
from kernels.kv_layout import BLOCK, place_of

_TILE, _NEAR, _COLUMNS = tl.constexpr(TILE), tl.constexpr(NEAR), tl.constexpr(COLUMNS)
_BLOCK = tl.constexpr(BLOCK)


@triton.jit
def attend_near(
    q, codes, exponents, tables, slot, position, depth, path,
    part_out, part_reference, part_total,
    row, head, rows, places, table_stride, path_stride, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    SPAN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The first part of one row, for the heads that share a KV head.

    What does not follow from this step's layers is looked up before `begin`.
    """
    own = tl.load(slot + row)
    last = tl.load(position + row)
    context = last - tl.load(depth + row)
    if own >= 0:
        line, table = path + row * path_stride, tables + own * table_stride
        first = far_tiles_of(last) * _TILE
        place, seen = _places_along(line, table, first, context, last, SPAN)
        keys, key_exponents = plane_of(codes, exponents, head, places, HEAD_DIM)
        values, value_exponents = plane_of(codes, exponents, KV_HEADS + head, places, HEAD_DIM)
        if EARLY:
            bring_vectors_near(keys, place, seen, HEAD_DIM)
            bring_vectors_near(values, place, seen, HEAD_DIM)
        begin(EARLY)
        column = tl.arange(0, _COLUMNS)
        used = column < GROUP
        vector = (row * KV_HEADS + head) * GROUP + column
        queries = load_queries(q, vector, used, HEAD_DIM, WIDTH)
        top, peak, reference, total, out = nothing_seen(WIDTH)
        for span in tl.static_range(_NEAR * _TILE // SPAN):
            if span > 0:
                place, seen = _places_along(line, table, first + span * SPAN, context, last, SPAN)
            inside = seen[:, :, None]
            k = load_vectors(keys, place[:, :, None], inside, HEAD_DIM, WIDTH)
            v = load_vectors(values, place[:, :, None], inside, HEAD_DIM, WIDTH)
            k_exponents = load_exponents(key_exponents, place, seen)
            v_exponents = load_exponents(value_exponents, place, seen)
            powers = pack_powers(k_exponents, v_exponents)
            own_k, own_v = widened(k, SPAN, WIDTH), widened(v, SPAN, WIDTH)
            scores = tl.dot(queries, tl.trans(own_k))
            top, peak, reference, total, out = add_span(
                top, peak, reference, total, out, scores, scale, own_v,
                powers, highest_power(v_exponents), used, tl.reshape(seen, [SPAN]),
            )  # fmt: skip
        at = (head * rows + row) * GROUP
        store_partials(
            part_out, part_reference, part_total, at, reference, total, out, used, HEAD_DIM, WIDTH
        )


@triton.jit
def _places_along(line, table, first, context, last, SPAN: tl.constexpr):
    """Places in the pool of SPAN positions along a path, and which are not behind its end."""
    block, inner = tl.arange(0, SPAN // _BLOCK), tl.arange(0, _BLOCK)
    at = first + block[:, None] * _BLOCK + inner[None, :]
    seen = at <= last
    guessed = seen & (at >= context)
    local = tl.load(line + at - context, mask=guessed, other=0)
    return place_of(table, tl.where(guessed, context + local, at), seen, True), seen
