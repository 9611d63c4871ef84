"""e^x of eight float32."""

from __future__ import annotations

import math

from kernels.cpu.emitter import FLOATS, INTS, Emitter, Value

_LOWEST, _HIGHEST = -87.0, 88.0  # beyond them the power of two would leave float32's range
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # Cody, Waite 1980: n * high is exact


def emit_exp(emit: Emitter, x: Value) -> Value:
    """e^x for x clamped to [-87, 88], within 2^-22 of it; NaN stays NaN.

    x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by its Taylor series up to r^7.
    """
    build = emit.build
    low, high = emit.floats(_LOWEST), emit.floats(_HIGHEST)
    x = build.select(build.fcmp_ordered("<", x, low), low, x)
    x = build.select(build.fcmp_ordered(">", x, high), high, x)
    nearest = emit.external("llvm.x86.avx.cvt.ps2dq.256", INTS, FLOATS)
    power = emit.call(nearest, build.fmul(x, emit.floats(1 / math.log(2))))
    whole = build.sitofp(power, FLOATS)
    rest = emit.fma(whole, emit.floats(-_LN2_HIGH), x)
    rest = emit.fma(whole, emit.floats(-_LN2_LOW), rest)
    series = emit.floats(1 / math.factorial(7))
    for degree in range(6, -1, -1):
        series = emit.fma(series, rest, emit.floats(1 / math.factorial(degree)))
    exponent = build.add(power, emit.ints(127))
    scale = build.bitcast(build.shl(exponent, emit.ints(23)), FLOATS)
    return build.fmul(series, scale)
