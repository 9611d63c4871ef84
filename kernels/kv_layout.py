"""How keys and values lie in E4M3, each vector of a token and a KV head under its own power of two.

``x ~= 2^exponent * code`` with the smallest exponent that keeps the largest magnitude of the vector
within E4M3's 448. That exponent is read off the vector's bits, so every device finds the same one,
no entry depends on any other token, and a guess that is dropped leaves nothing behind. Rounding
moves a value by at most 2^-4 of it, or by 2^-10 * 2^exponent where it is below 2^-6 * 2^exponent.
One byte beside head_dim of them: 0.8 % at 128.

Codes and exponents are pools of blocks of BLOCK tokens. A sequence has a table of blocks; its slot
i is place ``i % BLOCK`` of block ``table[i // BLOCK]``, and slot i holds position i below the
committed length. ``block * BLOCK + place`` is called a *place* of the pool here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.e4m3 import INTERPRETED, quantize_e4m3

BLOCK = 16  # tokens per block
HEAD_DIMS = (16, 256)  # smallest and largest head, which is a multiple of the first

# Within these a power of two and its reciprocal are normal float32 numbers; a vector whose largest
# magnitude is below 2^-112 is rounded more coarsely, one of zeros stays one.
_LOWEST, _HIGHEST = -120, 120
_BLOCK = tl.constexpr(BLOCK)
_EXPONENT_LOWEST, _EXPONENT_HIGHEST = tl.constexpr(_LOWEST), tl.constexpr(_HIGHEST)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_MANTISSA = tl.constexpr(0x7FFFFF)
_LARGEST_MANTISSA = tl.constexpr(0x600000)  # of 448 = 1.75 * 2^8
_INFINITY = tl.constexpr(0x7F800000)
_NAN_CODE = tl.constexpr(0x7F)


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer: keys, then values.

    codes: float8_e4m3fn [2, kv_heads, blocks, BLOCK, head_dim].
    exponents: int8 [2, kv_heads, blocks, BLOCK].
    """

    codes: Tensor
    exponents: Tensor


@dataclass(frozen=True, slots=True)
class KVPool:
    """All layers: the shapes of `KVLayer` with the layers in front."""

    codes: Tensor
    exponents: Tensor

    @classmethod
    def empty(
        cls, layers: int, kv_heads: int, blocks: int, head_dim: int, device: torch.device
    ) -> KVPool:
        """Zeros. Raises ValueError if no kernel takes heads of ``head_dim``."""
        _check_head_dim(head_dim)
        shape = (layers, 2, kv_heads, blocks, BLOCK)
        return cls(
            codes=torch.zeros(*shape, head_dim, dtype=torch.float8_e4m3fn, device=device),
            exponents=torch.zeros(shape, dtype=torch.int8, device=device),
        )

    def layer(self, number: int) -> KVLayer:
        return KVLayer(self.codes[number], self.exponents[number])


def check_layer(layer: KVLayer) -> None:
    """Raises ValueError if the layer's tensors do not fit each other, or no kernel takes them."""
    if layer.codes.dim() != 5 or layer.codes.shape[0] != 2 or layer.codes.shape[3] != BLOCK:
        wanted = f"[2, kv_heads, blocks, {BLOCK}, head_dim]"
        raise ValueError(f"layer.codes must be {wanted}, not {list(layer.codes.shape)}")
    shape = layer.codes.shape
    _check_head_dim(shape[4])
    check_tensor("layer.codes", layer.codes, shape, torch.float8_e4m3fn)
    check_tensor("layer.exponents", layer.exponents, shape[:4], torch.int8)


def _check_head_dim(head_dim: int) -> None:
    step, largest = HEAD_DIMS
    if not step <= head_dim <= largest or head_dim % step:
        allowed = f"a multiple of {step} up to {largest}"
        raise ValueError(f"head_dim must be {allowed}, not {head_dim}")


@triton.jit
def exponent_of(amax):
    """The exponent of vectors whose largest magnitude is ``amax``, finite float32: int32."""
    bits = amax.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - 127 - 8 + ((bits & _MANTISSA) > _LARGEST_MANTISSA).to(tl.int32)
    return tl.minimum(tl.maximum(exponent, _EXPONENT_LOWEST), _EXPONENT_HIGHEST)


@triton.jit
def power_of_two(exponent):
    """2^exponent in float32, exact, for exponents from -126 to 127."""
    return ((exponent.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def finite_magnitude(x):
    """Magnitudes of float32 values, 0 for those that are not finite."""
    bits = x.to(tl.int32, bitcast=True) & _MAGNITUDE
    return tl.where(bits < _INFINITY, bits, 0).to(tl.float32, bitcast=True)


@triton.jit
def no_infinity(x):
    """NaN in the place of infinities: E4M3 has none and would saturate them."""
    bits = x.to(tl.int32, bitcast=True) & _MAGNITUDE
    return tl.where(bits < _INFINITY, x, float("nan"))


@triton.jit
def widen(codes):
    """E4M3 as float16, exact; under the interpreter as float32."""
    if INTERPRETED:
        return _widen_by_hand(codes)
    else:
        return codes.to(tl.float16)


@triton.jit
def _widen_by_hand(codes):
    """The interpreter's own cast reads a NaN as a number."""
    nan = (codes.to(tl.uint8, bitcast=True) & _NAN_CODE) == _NAN_CODE
    return tl.where(nan, float("nan"), codes.to(tl.float32))


@triton.jit
def place_of(table, slot, used, MASKED: tl.constexpr):
    """Places in the pool of a sequence's slots, by its block table; 0 where MASKED and not used."""
    if MASKED:
        block = tl.load(table + slot // _BLOCK, mask=used, other=0)
    else:
        block = tl.load(table + slot // _BLOCK)
    return block * _BLOCK + slot % _BLOCK


def quantize_vectors_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise vectors ``[.., head_dim]``: codes of that shape and int8 exponents ``[..]``."""
    x = x.float()
    finite = x.isfinite()
    mantissa, exponent = torch.frexp(torch.where(finite, x, 0).abs().amax(dim=-1))
    # frexp's mantissas lie in [1/2, 1) where 448 is 7/8 * 2^9.
    exponent = (exponent - 9 + (mantissa > 0.875).int()).clamp(_LOWEST, _HIGHEST)
    exponent = torch.where(mantissa == 0, _LOWEST, exponent)
    scaled = torch.ldexp(torch.where(finite, x, torch.nan), -exponent[..., None])
    return quantize_e4m3(scaled), exponent.to(torch.int8)


def dequantize(codes: Tensor, exponents: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Vectors [.., head_dim] from their codes and exponents [..]."""
    return torch.ldexp(codes.to(dtype), exponents[..., None].int())
