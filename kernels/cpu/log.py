"""Natural logarithm of eight float32."""

from __future__ import annotations

from kernels.cpu.emitter import FLOATS, INTS, Emitter, Value

_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # Cody, Waite 1980: n * high is exact
_ROOT = 0x3F3504F3  # bits of sqrt(1/2), from which on a mantissa counts as it is
_TERMS = 5


def emit_log(emit: Emitter, x: Value) -> Value:
    """log x of normal numbers above 0, off by at most 2^-22 of it and of 1.

    x = 2^n m with m from sqrt(1/2) to sqrt(2), and log m = 2 (s + s³/3 + s⁵/5 + ..), where
    s = (m - 1) / (m + 1).
    """
    build = emit.build
    bits = build.sub(build.bitcast(x, INTS), emit.ints(_ROOT))
    power = build.ashr(bits, emit.ints(23))
    mantissa = build.add(build.and_(bits, emit.ints(0x7FFFFF)), emit.ints(_ROOT))
    m, one = build.bitcast(mantissa, FLOATS), emit.floats(1.0)
    s = build.fdiv(build.fsub(m, one), build.fadd(m, one))
    square = build.fmul(s, s)
    series = emit.floats(2 / (2 * _TERMS + 1))
    for term in range(_TERMS - 1, -1, -1):
        series = emit.fma(series, square, emit.floats(2 / (2 * term + 1)))
    whole = build.sitofp(power, FLOATS)
    low = emit.fma(s, series, build.fmul(whole, emit.floats(_LN2_LOW)))
    return emit.fma(whole, emit.floats(_LN2_HIGH), low)


def emit_log1m(emit: Emitter, v: Value) -> Value:
    """log(1 - v) of v from 0 to 1 - 2^-24, as exact where v is small (Higham 2002, 1.14.1)."""
    build = emit.build
    one = emit.floats(1.0)
    rest = build.fsub(one, v)
    lost = build.fsub(build.fsub(one, rest), v)
    return build.fadd(emit_log(emit, rest), build.fdiv(lost, rest))
