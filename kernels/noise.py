"""Gumbel noise from a counter hash of (seed, choice, position, token id): no state, any order.

``h`` is a 32-bit hash, ``v = min((h + 0.5) / 2^32, 1 - 2^-24)``, ``G = -log(-log1p(-v))`` in
float32. The hash is the same number everywhere. G is as exact as the device's logarithms, within
2e-7 * max(1, |G|) of the exact value; on one kind of device it has the same bits wherever a token
stands. Nothing is read from memory.
"""

from __future__ import annotations

from typing import TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from kernels.e4m3 import INTERPRETED

_Words = TypeVar("_Words", int, Tensor)

_MASK = 0xFFFFFFFF
_WORD_OFFSET = tl.constexpr(0x9E3779B9)  # so that a word of zeros moves the key
_SPREAD = tl.constexpr(0x9E3779B1)
_FIRST_FACTOR = tl.constexpr(0x7FEB352D)
_SECOND_FACTOR = tl.constexpr(0x846CA68B)
_UNIT = tl.constexpr(2.0**-32)
_BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def _mix(x):
    """Two rounds on uint32, which wraps by itself."""
    x = (x ^ (x >> 16)) * _FIRST_FACTOR
    x = (x ^ (x >> 15)) * _SECOND_FACTOR
    return x ^ (x >> 16)


@triton.jit
def noise_key(seed_low, seed_high, choice, position):
    """Fold four words, each an int32 scalar or block, into the key of a row: uint32."""
    key = _mix(seed_low.to(tl.uint32, bitcast=True) + _WORD_OFFSET)
    key = _mix((key ^ seed_high.to(tl.uint32, bitcast=True)) + _WORD_OFFSET)
    key = _mix((key ^ choice.to(tl.uint32, bitcast=True)) + _WORD_OFFSET)
    return _mix((key ^ position.to(tl.uint32, bitcast=True)) + _WORD_OFFSET)


@triton.jit
def noise_hash(key, ids):
    """Hash of token ids, int32, under a key: uint32."""
    x = _mix((ids.to(tl.uint32, bitcast=True) * _SPREAD) ^ key)
    return _mix(x + key)


@triton.jit
def gumbel(hashes):
    """Noise of uint32 hashes: float32. Compile with ``enable_fp_fusion=False``."""
    v = tl.minimum((hashes.to(tl.float32) + 0.5) * _UNIT, _BELOW_ONE)
    if INTERPRETED:
        # numpy has no log1p here; log(u) * x / (u - 1) with u = 1 + x loses nothing (Kahan).
        x = -v.to(tl.float64)
        u = 1.0 + x
        inner = -(tl.log(u) * (x / (u - 1.0))).to(tl.float32)
        return -tl.log(inner.to(tl.float64)).to(tl.float32)
    else:
        return -libdevice.log(-libdevice.log1p(-v))


def noise_key_reference(seed: int, choice: int, position: int) -> int:
    """The key of a row."""
    key = 0
    for word in (seed & _MASK, seed >> 32, choice, position):
        key = _mix_reference(((key ^ (word & _MASK)) + _WORD_OFFSET.value) & _MASK)
    return key


def noise_hash_reference(key: int, ids: Tensor) -> Tensor:
    """int64 ids to hashes in [0, 2^32), int64."""
    spread: Tensor = (ids * _SPREAD.value & _MASK) ^ key
    return _mix_reference((_mix_reference(spread) + key) & _MASK)


def gumbel_reference(hashes: Tensor) -> Tensor:
    """int64 hashes to float32 noise."""
    v = hashes.to(torch.float32).add(0.5).mul(_UNIT.value).clamp(max=_BELOW_ONE.value)
    return v.neg().log1p().neg().log().neg()


def _mix_reference(x: _Words) -> _Words:
    x = ((x ^ (x >> 16)) * _FIRST_FACTOR.value) & _MASK
    x = ((x ^ (x >> 15)) * _SECOND_FACTOR.value) & _MASK
    return x ^ (x >> 16)
