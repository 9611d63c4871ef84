"""The running state of attention: columns of queries, to which spans of keys and values are added.

Of each column are known its highest score; the largest power of two that a value came with; a
reference, the power of two of which weights are multiples (`add_span`); the sum of the weights; and
the sum of values under these weights. A key that a column does not see weighs an exact zero, and no
column feels another.

Columns are the tall side of both products, ``scores = q K^T`` and ``out = weights V``, and always
COLUMNS of them: the tensor cores take no fewer at full speed, and one machine code serves every
launch. Weights stay in registers between the two products, and a column's sums within four threads;
keys and values are widened once for all columns. They come straight from memory into registers, a
span ahead, and go through shared memory once, as float16: to wait for each other is what a program
of four warps spends its time on, so threads find out for themselves what they can.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.e4m3 import INTERPRETED
from kernels.kv_layout import BLOCK, widen

COLUMNS = 64

_COLUMNS, _BLOCK = tl.constexpr(COLUMNS), tl.constexpr(BLOCK)
_BIAS = tl.constexpr(127)
_MANTISSA_BITS = tl.constexpr(23)
_EXPONENT_BITS = tl.constexpr(0x7F800000)
_UNSEEN = tl.constexpr(-127)  # an exponent that makes a power of zero
_ROOM = tl.constexpr(15)  # the largest weight is 2^15: float16 has 29 powers of two below it
_LOWEST_PEAK = tl.constexpr(47)  # 2^-80: values that are all smaller are seen as against this
_HIDDEN = tl.constexpr(2.0**100)  # a reference beside which no score weighs anything
_PREFETCH = tl.constexpr("""{
    .reg .pred seen;
    mov.u32 $0, 0;
    setp.ne.s32 seen, $2, 0;
    @seen prefetch.global.L2 [$1];
}""")
_WIDEN_FOUR = tl.constexpr("""{
    .reg .b16 low, high;
    .reg .b32 left, right;
    mov.b32 {low, high}, $4;
    cvt.rn.f16x2.e4m3x2 left, low;
    cvt.rn.f16x2.e4m3x2 right, high;
    mov.b32 {$0, $1}, left;
    mov.b32 {$2, $3}, right;
}""")
_STORE = tl.constexpr("""{
    .reg .pred some;
    mov.u32 $0, 0;
    setp.ne.s32 some, $3, 0;
    @some st.global.f32 [$1], $2;
}""")
_STORE_PAIR = tl.constexpr("""{
    .reg .pred some;
    mov.u32 $0, 0;
    setp.ne.s32 some, $4, 0;
    @some st.global.v2.f32 [$1], {$2, $3};
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
    return _apart(queries, WIDTH)


@triton.jit
def nothing_seen(WIDTH: tl.constexpr):
    """The state before the first span."""
    top = tl.full([_COLUMNS], float("-inf"), tl.float32)
    peak = tl.full([_COLUMNS], _LOWEST_PEAK, tl.int32)
    return top, peak, top, tl.zeros([_COLUMNS], tl.float32), tl.zeros([_COLUMNS, WIDTH], tl.float32)


@triton.jit
def add_span(
    top, peak, reference, total, out,
    scores, scale, v, powers, highest, sees, visible,
):  # fmt: skip
    """The state with a span more.

    A weight is ``2^(scaled score - reference)`` in float32; times its value's power of two it is
    at most 2^15, since that is what the highest score makes of the largest power of two. So it
    is rounded to float16, by 2^-12 of itself at most, or by 2^-40 of that largest one.

    Args:
        scores: of queries and `widened` keys [columns, tokens].
        scale: of scores, which are powers of two.
        v: `widened`, finite where no column sees a token.
        powers: of the tokens' vectors, as `pack_powers` gives them.
        highest: the largest of the values' powers.
        sees: [columns]: which see the span. The others stay what they are.
        visible: [tokens], or None: which of them they see, if not all.
    """
    powers = tl.broadcast_to(powers[None, :], scores.shape)
    scores *= (powers << _MANTISSA_BITS).to(tl.float32, bitcast=True)
    if visible is not None:
        scores = tl.where(visible[None, :], scores, float("-inf"))
    top = tl.where(sees, tl.maximum(top, tl.max(scores, 1)), top)
    peak = tl.where(sees, tl.maximum(peak, highest), peak)
    base = tl.where(top == float("-inf"), 0.0, top)  # of a column that sees nothing yet
    before = reference
    reference = base * scale + (peak - (_BIAS + _ROOM)).to(tl.float32)
    hidden = tl.where(sees, reference, _HIDDEN)
    weights = tl.exp2(tl.fma(scores, scale, -hidden[:, None]))
    fading = tl.exp2(before - reference)
    total = total * fading + tl.sum(weights, 1)
    weights *= (powers & _EXPONENT_BITS).to(tl.float32, bitcast=True)
    if not INTERPRETED:
        weights = weights.to(tl.float16)
    out = tl.dot(weights, v, out * fading[:, None])
    return top, peak, reference, total, out


@triton.jit
def plane_of(codes, exponents, plane, places, HEAD_DIM: tl.constexpr):
    """Where the codes and the exponents of a plane begin: keys or values of a KV head."""
    at = plane.to(tl.int64) * places
    return codes + at * HEAD_DIM, exponents + at


@triton.jit
def load_vectors(codes, place, seen, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Codes of one plane by their places in the pool, zeros where not seen, for `widened`.

    Four in an int32, [blocks, BLOCK, WIDTH / 4]: what a loop hands on would be a register for each
    code. Under the interpreter as they are, [blocks, BLOCK, WIDTH].

    Args:
        place: [blocks, BLOCK, 1].
        seen: the same, or of all.
    """
    if INTERPRETED:
        lane = tl.arange(0, WIDTH)[None, None, :]
        return tl.load(codes + place * HEAD_DIM + lane, mask=seen & (lane < HEAD_DIM), other=0.0)
    else:
        lane = tl.arange(0, WIDTH // 4)[None, None, :]
        words = codes.to(tl.pointer_type(tl.int32), bitcast=True) + place * (HEAD_DIM // 4) + lane
        if HEAD_DIM == WIDTH:
            return tl.load(words, mask=seen, other=0)
        else:
            return tl.load(words, mask=seen & (lane < HEAD_DIM // 4), other=0)


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
def load_exponents(exponents, place, seen):
    """Of the vectors of one plane by their places in the pool: int8 [blocks, BLOCK]."""
    return tl.load(exponents + place, mask=seen, other=_UNSEEN)


@triton.jit
def pack_powers(keys, values):
    """Powers of two of keys and of values, as float32 has them, in one int32: [tokens].

    One register takes both from one thread to those that need them.
    """
    powers = (keys.to(tl.int32) + _BIAS) | ((values.to(tl.int32) + _BIAS) << _MANTISSA_BITS)
    powers = tl.reshape(powers, [powers.shape[0] * powers.shape[1]])
    if INTERPRETED:
        return powers
    else:  # Or else the compiler has every thread load all that it needs anew.
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [powers], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def load_exponent_words(exponents, block, seen):
    """Like `load_exponents`, of whole blocks [blocks, 1], four in an int32: [blocks, BLOCK / 4].

    That is little enough for each warp to have all of it, so that none asks the others.
    """
    words = exponents.to(tl.pointer_type(tl.int32), bitcast=True)
    word = tl.arange(0, _BLOCK // 4)[None, :]
    return tl.load(words + block * (_BLOCK // 4) + word, mask=seen, other=0)


@triton.jit
def highest_power(exponents):
    """The largest of powers by their exponents."""
    return tl.max(exponents.to(tl.int32)) + _BIAS


@triton.jit
def highest_power_of_words(words):
    """`highest_power` of what `load_exponent_words` gives."""
    highest = words >> 24
    for byte in tl.static_range(3):
        highest = tl.maximum(highest, (words << (8 * (byte + 1))) >> 24)
    return highest_power(highest)


@triton.jit
def widened(codes, SPAN: tl.constexpr, WIDTH: tl.constexpr):
    """What `load_vectors` gives, as float16, exact: [tokens, WIDTH], `_apart`."""
    if INTERPRETED:
        return _apart(widen(tl.reshape(codes, [SPAN, WIDTH])), WIDTH)
    else:
        first, second, third, fourth = tl.inline_asm_elementwise(
            _WIDEN_FOUR, "=h,=h,=h,=h,r", [codes],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=1,
        )  # fmt: skip
        pairs = tl.join(tl.join(first, third), tl.join(second, fourth))
        return _apart(tl.reshape(pairs, [SPAN, WIDTH]), WIDTH)


@triton.jit
def _apart(vectors, WIDTH: tl.constexpr):
    """The two halves of each 16 numbers WIDTH / 2 from each other: [.., WIDTH].

    A thread has 16 numbers side by side, which it writes for the tensor cores in two stores: so the
    stores of threads side by side fall into different banks.
    """
    halves = tl.reshape(vectors, [vectors.shape[0], WIDTH // 16, 2, 8])
    return tl.reshape(tl.permute(halves, (0, 2, 1, 3)), [vectors.shape[0], WIDTH])


@triton.jit
def store_partials(
    part_out, part_reference, part_total, first, reference, total, out, sees,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the columns that ``sees`` names to places from ``first`` on of `Partials`.

    Where a query is infinite a sum of weights may be zero.
    """
    at = first + tl.arange(0, _COLUMNS)
    total = tl.where(total == 0.0, float("nan"), total)
    _store(part_reference + at, reference, sees)
    _store(part_total + at, total, sees)
    halves = tl.permute(tl.reshape(out, [_COLUMNS, 2, WIDTH // 16, 8]), (0, 2, 1, 3))
    left, right = tl.split(tl.reshape(halves, [_COLUMNS, WIDTH // 2, 2]))
    lane = 2 * tl.arange(0, WIDTH // 2)
    inside = tl.broadcast_to(sees[:, None], left.shape)
    if HEAD_DIM < WIDTH:
        inside &= (lane < HEAD_DIM)[None, :]
    _store_pair((part_out + at * HEAD_DIM)[:, None] + lane[None, :], left, right, inside)


@triton.jit
def _store(pointers, values, mask):
    """Like ``tl.store``, from where the values are: nothing goes through shared memory."""
    if INTERPRETED:
        tl.store(pointers, values, mask=mask)
    else:
        tl.inline_asm_elementwise(
            _STORE, "=r,l,f,r", [pointers.to(tl.int64), values, mask.to(tl.int32)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def _store_pair(pointers, left, right, mask):
    """`_store` of two values side by side."""
    if INTERPRETED:
        tl.store(pointers, left, mask=mask)
        tl.store(pointers + 1, right, mask=mask)
    else:
        tl.inline_asm_elementwise(
            _STORE_PAIR, "=r,l,f,f,r", [pointers.to(tl.int64), left, right, mask.to(tl.int32)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
