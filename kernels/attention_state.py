"""The running state of attention: columns of queries, to which spans of keys and values are added.

Of each column are known its highest score; the largest power of two that a value came with; a
reference, the power of two of which weights are multiples (`add_span`); the sum of the weights; and
the sum of values under these weights. A key that a column does not see weighs an exact zero, and no
column feels another.

Columns are the tall side of both products, ``scores = q K^T`` and ``out = weights V``, and always
COLUMNS of them: the tensor cores take no fewer at full speed, and one machine code serves every
launch. Weights stay in registers between the two products, and a column's sums within four threads;
keys and values are widened once for all columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.e4m3 import INTERPRETED
from kernels.kv_layout import widen

COLUMNS = 64

_COLUMNS = tl.constexpr(COLUMNS)
_BIAS = tl.constexpr(127)
_MANTISSA_BITS = tl.constexpr(23)
_EXPONENT_BITS = tl.constexpr(0x7F800000)
_UNSEEN = tl.constexpr(-127)  # an exponent that makes a power of zero
_ROOM = tl.constexpr(15)  # the largest weight is 2^15: float16 has 29 powers of two below it
_LOWEST_PEAK = tl.constexpr(47)  # 2^-80: values that are all smaller are seen as against this
_IDLE = tl.constexpr(2.0**100)  # higher than any score
_PREFETCH = tl.constexpr("""{
    .reg .pred seen;
    mov.u32 $0, 0;
    setp.ne.s32 seen, $2, 0;
    @seen prefetch.global.L2 [$1];
}""")


@triton.jit
def load_queries(q, vector, used, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Vectors of ``q`` by number, zeros where not used: [columns, WIDTH].

    Keys become float16 by one instruction, bfloat16 by four: so queries are float16 here. Below
    2^-14 they are off by up to 2^-25, which no score feels; from 65,520 on they are infinite.
    """
    lane = tl.arange(0, WIDTH)
    inside = used[:, None] & (lane < HEAD_DIM)[None, :]
    queries = tl.load(q + vector[:, None] * HEAD_DIM + lane[None, :], mask=inside, other=0.0)
    queries = queries.to(tl.float32)
    if not INTERPRETED:
        queries = queries.to(tl.float16)
    return queries


@triton.jit
def nothing_seen(WIDTH: tl.constexpr):
    """The state before the first span."""
    top = tl.full([_COLUMNS], float("-inf"), tl.float32)
    peak = tl.full([_COLUMNS], _LOWEST_PEAK, tl.int32)
    return top, peak, top, tl.zeros([_COLUMNS], tl.float32), tl.zeros([_COLUMNS, WIDTH], tl.float32)


@triton.jit
def add_span(
    top, peak, reference, total, out, queries, scale, idle, k, v, powers, largest, whole, visible
):  # fmt: skip
    """The state with a span more.

    A weight is ``2^(scaled score - reference)`` in float32; times its value's power of two it is
    at most 2^15, since that is what the highest score makes of the largest power of two. So it
    is rounded to float16, by 2^-12 of itself at most, or by 2^-40 of that largest one.

    Args:
        scale: of scores, which are powers of two.
        idle: what `idle_columns` gives.
        k, v: codes [tokens, WIDTH], finite where no column sees a token.
        powers: of the tokens' vectors, as `load_powers` gives them.
        largest: `largest_power` of the tokens that a column sees; a number, or [columns].
        whole: all columns but idle ones see all tokens; if not, ``visible`` says which.
        visible: broadcast to [columns, tokens].
    """
    scores = tl.dot(queries, tl.trans(widen(k))) * _key_powers(powers)[None, :]
    if not whole:
        scores = tl.where(visible, scores, float("-inf"))
    top = tl.maximum(top, tl.max(scores, 1))
    peak = tl.maximum(peak, largest)
    base = tl.where(top == float("-inf"), 0.0, top)  # of a column that sees nothing yet
    before = reference
    reference = base * scale + idle + (peak - (_BIAS + _ROOM)).to(tl.float32)
    weights = tl.exp2(tl.fma(scores, scale, -reference[:, None]))
    fading = tl.exp2(before - reference)
    total = total * fading + tl.sum(weights, 1)
    weights *= (powers & _EXPONENT_BITS).to(tl.float32, bitcast=True)[None, :]
    if not INTERPRETED:
        weights = weights.to(tl.float16)
    out = tl.dot(weights, widen(v), out * fading[:, None])
    return top, peak, reference, total, out


@triton.jit
def idle_columns(used):
    """What keeps columns that are not used from weighing anything: [columns]."""
    return tl.where(used, 0.0, _IDLE)


@triton.jit
def plane_of(codes, exponents, plane, places, HEAD_DIM: tl.constexpr):
    """Where the codes and the exponents of a plane begin: keys or values of a KV head."""
    at = plane.to(tl.int64) * places
    return codes + at * HEAD_DIM, exponents + at


@triton.jit
def load_vectors(codes, place, seen, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    """[tokens, WIDTH] of one plane by their places in the pool; zeros where not seen."""
    lane = tl.arange(0, WIDTH)
    at = codes + place[:, None] * HEAD_DIM + lane[None, :]
    if HEAD_DIM == WIDTH:
        return tl.load(at, mask=seen[:, None], other=0.0)
    else:
        return tl.load(at, mask=seen[:, None] & (lane < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def bring_vectors_near(codes, place, seen, HEAD_DIM: tl.constexpr):
    """Start loading vectors into the cache that all processors share, a line of each."""
    tl.inline_asm_elementwise(
        _PREFETCH,
        "=r,l,r",
        [(codes + place * HEAD_DIM).to(tl.int64), seen.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def load_powers(key_exponents, value_exponents, place, seen):
    """Powers of two of keys and of values, as float32 has them, in one int32: [tokens].

    One register takes both from one thread to those that need them.
    """
    keys = tl.load(key_exponents + place, mask=seen, other=_UNSEEN).to(tl.int32) + _BIAS
    values = tl.load(value_exponents + place, mask=seen, other=_UNSEEN).to(tl.int32) + _BIAS
    powers = keys | (values << _MANTISSA_BITS)
    if INTERPRETED:
        return powers
    else:  # Or else the compiler has every thread load all that it needs anew.
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [powers], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def largest_power(powers, seen):
    """The largest of the values' powers, of those that are seen."""
    return tl.max(tl.where(seen, powers >> _MANTISSA_BITS, 0), 0)


@triton.jit
def _key_powers(powers):
    return (powers << _MANTISSA_BITS).to(tl.float32, bitcast=True)


@triton.jit
def store_partials(
    part_out, part_reference, part_total, first, reference, total, out, sees,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the columns that ``sees`` names to places from ``first`` on of `Partials`.

    Which they are is told to the threads that write by sums of weights that are not zero: nothing
    else costs the loop before it as little. Where a query is infinite all may be zero.
    """
    lane = tl.arange(0, WIDTH)
    at = first + tl.arange(0, _COLUMNS)
    total = tl.where(sees, tl.where(total == 0.0, float("nan"), total), 0.0)
    held = total != 0.0
    inside = held[:, None] & (lane < HEAD_DIM)[None, :]
    tl.store(part_reference + at, reference, mask=held)
    tl.store(part_total + at, total, mask=held)
    tl.store(part_out + at[:, None] * HEAD_DIM + lane[None, :], out, mask=inside)
