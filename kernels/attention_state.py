"""The running state of attention: columns of queries, to which spans of keys and values are added.

Of each column are known the highest of its weights times their values' powers of two, as a power
of two; a reference, of which powers of two weights are multiples (`add_span`); the sum of the
weights; and the sum of values under these weights. A key that a column does not see weighs an exact
zero, and no column feels another.

Columns are the tall side of both products, ``scores = q K^T`` and ``out = weights V``, and always
COLUMNS of them: the tensor cores take no fewer at full speed, and one machine code serves every
launch. Weights stay in registers between the two products, and a column's sums within four threads;
keys and values are widened once for all columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.e4m3 import INTERPRETED
from kernels.kv_layout import power_of_two, widen

COLUMNS = 64

_COLUMNS = tl.constexpr(COLUMNS)
_BIAS = tl.constexpr(127)
_ROOM = tl.constexpr(15.0)  # the largest weight is 2^15: float16 has 29 powers of two below it
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
    return top, top, tl.zeros([_COLUMNS], tl.float32), tl.zeros([_COLUMNS, WIDTH], tl.float32)


@triton.jit
def add_span(top, reference, total, out, queries, scale, idle, k, v, exponents, whole, visible):
    """The state with a span more.

    A weight is ``2^(scaled score - reference)`` in float32; times its value's power of two it is
    at most 2^15. So it is rounded to float16, by 2^-12 of itself at most, or by 2^-40 of the
    largest of them.

    Args:
        scale: of scores, which are powers of two.
        idle: what `idle_columns` gives.
        k, v: codes [tokens, WIDTH], finite where no column sees a token.
        exponents: of the tokens' vectors, as `load_exponents` gives them.
        whole: all columns but idle ones see all tokens; if not, ``visible`` says which.
        visible: broadcast to [columns, tokens].
    """
    value_exponents = (exponents & 0xFF) - _BIAS
    scores = tl.dot(queries, tl.trans(widen(k))) * power_of_two(exponents >> 8)[None, :]
    scores = tl.fma(scores, scale, value_exponents.to(tl.float32)[None, :])
    if not whole:
        scores = tl.where(visible, scores, float("-inf"))
    top = tl.maximum(top, tl.max(scores, 1))
    before = reference
    reference = tl.where(top == float("-inf"), 0.0, top) + (idle - _ROOM)
    weights = tl.exp2(scores - reference[:, None])
    fading = tl.exp2(before - reference)
    total = total * fading + tl.sum(weights * power_of_two(-value_exponents)[None, :], 1)
    if not INTERPRETED:
        weights = weights.to(tl.float16)
    out = tl.dot(weights, widen(v), out * fading[:, None])
    return top, reference, total, out


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
def load_exponents(key_exponents, value_exponents, place, seen):
    """Exponents of keys and, from 0 to 255, of values in one int32; 0 where not seen: [tokens].

    One register takes both from one thread to those that need them.
    """
    keys = tl.load(key_exponents + place, mask=seen, other=0).to(tl.int32)
    values = tl.load(value_exponents + place, mask=seen, other=0).to(tl.int32)
    exponents = (keys << 8) | (values + _BIAS)
    if INTERPRETED:
        return exponents
    else:  # Or else the compiler has every thread load all that it needs anew.
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [exponents], dtype=tl.int32, is_pure=False, pack=1
        )


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
