"""E4M3, the 8-bit float of weights and activations, and the scale of a row of it.

``x ~= scale * code``: 4 exponent bits, 3 mantissa bits, no infinity, largest value 448, smallest
2^-9. Rounded to nearest, ties to even: a code is off by at most 2^-4 of its value, or 2^-10 below
2^-6. What lies beyond +-448 saturates, a NaN is the code 0x7F whatever its sign.

A row's scale is ``max(amax, 2^-100) / 448`` in float32, so a row of zeros stays one and the
reciprocal of a tiny row is finite. A row with a NaN or an infinity gets the scale NaN, and with it
every code of that row: a broken row is seen, and no other row is touched.

Triton's interpreter casts to 8 and 16 bits wrongly; there the same rounding is done with integers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

E4M3_MAX = tl.constexpr(448.0)
AMAX_FLOOR = tl.constexpr(2.0**-100)

_NAN_CODE = tl.constexpr(0x7F)
_MAX_CODE = tl.constexpr(0x7E)
_SIGN_CODE = tl.constexpr(0x80)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_INFINITY = tl.constexpr(0x7F800000)
_SMALLEST_NORMAL = tl.constexpr(121 << 23)  # 2^-6
_REBIAS = tl.constexpr((127 - 7) << 3)
# A float32 at 2^14 has steps of 2^-9: adding it rounds to E4M3's subnormal steps.
_STEP_ANCHOR = tl.constexpr(2.0**14)
_STEP_ANCHOR_BITS = tl.constexpr((127 + 14) << 23)

# For sm_89 Triton's own cast goes through float16, truncated: it would round some values twice.
_CONVERT_FOUR = tl.constexpr("""{
    .reg .b16 low, high;
    cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
}""")


@triton.jit
def to_e4m3(x):
    """Round a block of float32 values to ``float8e4nv``, saturating, NaN kept."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        magnitude = bits & _MAGNITUDE
        normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - _REBIAS
        anchored = magnitude.to(tl.float32, bitcast=True) + _STEP_ANCHOR
        subnormal = anchored.to(tl.int32, bitcast=True) - _STEP_ANCHOR_BITS
        code = tl.where(magnitude < _SMALLEST_NORMAL, subnormal, tl.minimum(normal, _MAX_CODE))
        code = tl.where(bits < 0, code | _SIGN_CODE, code)
        code = tl.where(magnitude > _INFINITY, _NAN_CODE, code)
        return code.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    else:
        codes = tl.inline_asm_elementwise(
            _CONVERT_FOUR, "=r,r,r,r,r", [x], dtype=tl.uint8, is_pure=True, pack=4
        )
        return codes.to(tl.float8e4nv, bitcast=True)


@triton.jit
def e4m3_to_bf16(x):
    """Widen a block of ``float8e4nv`` to ``bfloat16``, exactly; not for the interpreter.

    Triton's direct cast converts value by value with an instruction of a quarter of the speed.
    """
    return x.to(tl.float16).to(tl.float32).to(tl.bfloat16)


@triton.jit
def to_bf16(x):
    """Round float32 values to ``bfloat16``, to nearest even, NaN kept."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where((bits & _MAGNITUDE) > _INFINITY, 0x7FC0, rounded)
        return (rounded & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def row_amax(x, axis: tl.constexpr):
    """Largest magnitude of float32 values along ``axis``; NaN or infinite if one of them is.

    Compared as integers: ``tl.max`` on floats passes over a NaN.
    """
    magnitude = tl.max(x.to(tl.int32, bitcast=True) & _MAGNITUDE, axis)
    return magnitude.to(tl.float32, bitcast=True)


@triton.jit
def scale_of(amax):
    """Scale of rows with this ``amax``, and its reciprocal; both NaN unless ``amax`` is finite."""
    magnitude = amax.to(tl.int32, bitcast=True)
    held = tl.maximum(amax, AMAX_FLOOR)
    held = tl.where(magnitude < _INFINITY, held, float("nan"))
    return tl.div_rn(held, E4M3_MAX), tl.div_rn(E4M3_MAX, held)


def quantize_e4m3(x: torch.Tensor) -> torch.Tensor:
    """The reference of `to_e4m3`: any float tensor to ``torch.float8_e4m3fn``."""
    x = x.float()
    limit = E4M3_MAX.value
    codes = x.clamp(-limit, limit).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(x.isnan(), _NAN_CODE.value, codes).view(torch.float8_e4m3fn)


def scale_reference(amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference of `scale_of`, in float32.

    Both sides are tensors: torch multiplies by the rounded reciprocal of a number that it divides
    by on a GPU, and of a tensor that divides a number anywhere.
    """
    held = amax.float().clamp(min=AMAX_FLOOR.value)
    held = torch.where(held.isfinite(), held, torch.nan)
    largest = torch.full_like(held, E4M3_MAX.value)
    return held / largest, largest / held


def quantize_rows_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise every row of ``[rows, columns]``: codes of that shape, float32 scales ``[rows]``."""
    x = x.float()
    scale, reciprocal = scale_reference(x.abs().amax(dim=1))
    return quantize_e4m3(x * reciprocal[:, None]), scale
