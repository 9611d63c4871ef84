"""Ids of nodes on the device: the 64-bit path hashes of the trees, in words that wrap.

    child = mix(parent ^ (token + 1) * golden)

``mix`` is the finalizer of SplitMix64 (Steele, Lea, Flood 2014). Tensors hold the bits as int64.
"""

from __future__ import annotations

import triton
import triton.language as tl

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST_FACTOR = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = tl.constexpr(0x94D049BB133111EB)
_WRAP = 2**64


@triton.jit
def child_id(parent_id, token):
    """Id, int64, of the path that ends with ``token``, int32, after the path ``parent_id``."""
    x = parent_id.to(tl.uint64, bitcast=True) ^ ((token.to(tl.uint64) + 1) * _GOLDEN)
    x = (x ^ (x >> 30)) * _FIRST_FACTOR
    x = (x ^ (x >> 27)) * _SECOND_FACTOR
    return (x ^ (x >> 31)).to(tl.int64, bitcast=True)


def child_id_reference(parent_id: int, token: int) -> int:
    """The same for signed integers."""
    x: int = (parent_id ^ ((token + 1) * _GOLDEN.value)) % _WRAP
    x = (x ^ (x >> 30)) * _FIRST_FACTOR.value % _WRAP
    x = (x ^ (x >> 27)) * _SECOND_FACTOR.value % _WRAP
    x ^= x >> 31
    return x - _WRAP if x >= _WRAP // 2 else x
