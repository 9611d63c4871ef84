"""The running state of attention: columns of queries, to which tiles of keys and values are added.

Of each column are known the highest score so far, in powers of two; the sum of the weights
``2^(score - highest)``; and the sum of values under these weights. Queries are columns, keys and
head_dim rows of both products, ``scores = K q`` and ``out = V^T weights``: so one instruction
serves any number of columns, and no column feels another. A key that a column does not see weighs
an exact zero.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.e4m3 import INTERPRETED
from kernels.kv_layout import (
    exponent_of,
    finite_magnitude,
    power_of_two,
    widen_key,
    widen_value,
)


@triton.jit
def load_queries(q, vector, used, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Vectors of ``q`` by number, zeros where not used, and what they are divided by.

    Keys become float16 by one instruction, bfloat16 by four: so queries are float16 here, under a
    power of two each as keys are. What is lost of a value is below 2^-32 of its vector's largest.

    Returns:
        [WIDTH, columns] and [columns].
    """
    lane = tl.arange(0, WIDTH)
    inside = used[:, None] & (lane < HEAD_DIM)[None, :]
    queries = tl.load(q + vector[:, None] * HEAD_DIM + lane[None, :], mask=inside, other=0.0)
    queries = queries.to(tl.float32)
    exponent = exponent_of(tl.max(finite_magnitude(queries), 1))
    queries *= power_of_two(-exponent)[:, None]
    if not INTERPRETED:
        queries = queries.to(tl.float16)
    return tl.trans(queries), power_of_two(exponent)


@triton.jit
def nothing_seen(COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    """The state before the first tile: highest scores, sums of weights, sums of values."""
    top = tl.full([COLUMNS], float("-inf"), tl.float32)
    return top, tl.zeros([COLUMNS], tl.float32), tl.zeros([WIDTH, COLUMNS], tl.float32)


@triton.jit
def add_tile(
    top, total, out,
    queries, scale, keys, key_exponents, values, value_exponents, place, seen, visible,
    MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The state with a tile more.

    Args:
        scale: of the scores, which are powers of two, by column.
        keys, key_exponents, values, value_exponents: pointers at one KV head.
        place: of the tile's tokens in the pool, [tokens].
        seen: where not, nothing is read; looked at if MASKED.
        visible: to which columns, broadcast to [tokens, columns].
    """
    k = _load_vectors(keys, place, seen, MASKED, HEAD_DIM, WIDTH)
    v = _load_vectors(values, place, seen, MASKED, HEAD_DIM, WIDTH)
    key_scale = _load_powers(key_exponents, place, seen, MASKED)
    value_scale = _load_powers(value_exponents, place, seen, MASKED)

    scores = tl.dot(widen_key(k), queries) * key_scale[:, None] * scale[None, :]
    scores = tl.where(visible, scores, float("-inf"))
    highest = tl.maximum(top, tl.max(scores, 0))
    base = tl.where(highest == float("-inf"), 0.0, highest)  # of a column that sees nothing yet
    weights = tl.exp2(scores - base[None, :])
    fading = tl.exp2(top - base)
    total = total * fading + tl.sum(weights, 0)
    weights *= value_scale[:, None]
    if not INTERPRETED:
        weights = weights.to(tl.bfloat16)
    out = tl.dot(tl.trans(widen_value(v)), weights, out * fading[None, :])
    return highest, total, out


@triton.jit
def store_partials(
    part_out, part_top, part_total, vector, used, top, total, out,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the used columns to the places ``vector`` of `tree_attention_combine.Partials`."""
    lane = tl.arange(0, WIDTH)
    inside = (lane < HEAD_DIM)[:, None] & used[None, :]
    tl.store(part_top + vector, top, mask=used)
    tl.store(part_total + vector, total, mask=used)
    tl.store(part_out + vector[None, :] * HEAD_DIM + lane[:, None], out, mask=inside)


@triton.jit
def _load_vectors(
    vectors, place, seen, MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr
):
    """[tokens, WIDTH]; zeros where there is nothing to read."""
    lane = tl.arange(0, WIDTH)
    at = vectors + place[:, None] * HEAD_DIM + lane[None, :]
    if MASKED:
        return tl.load(at, mask=seen[:, None] & (lane < HEAD_DIM)[None, :], other=0.0)
    elif HEAD_DIM != WIDTH:
        return tl.load(at, mask=(lane < HEAD_DIM)[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def _load_powers(exponents, place, seen, MASKED: tl.constexpr):
    if MASKED:
        return power_of_two(tl.load(exponents + place, mask=seen, other=0))
    else:
        return power_of_two(tl.load(exponents + place))
