"""Gumbel noise as a function of (seed, choice, position, token id): no state, any order.

``h`` is a 32-bit counter hash, ``v = (h + 0.5) / 2^32`` and ``G = -log(-log1p(-v))``, all in
float32. Small v makes large G, and float32 is finest there. v that would round to 1 is held just
below it: minus infinity could not win against others, but it must not be all that filters leave.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_BELOW_ONE = 1.0 - 2.0**-24


def gumbel(seed: int, choice: int, position: int, vocab: int, device: torch.device) -> Tensor:
    """Noise of every token id at one position: float32 [vocab]."""
    key = noise_key(seed, choice, position)
    ids = torch.arange(vocab, dtype=torch.int64, device=device)
    v = ((_hash(ids, key).to(torch.float32) + 0.5) * 2.0**-32).clamp_(max=_BELOW_ONE)
    return -torch.log(-torch.log1p(-v))


def noise_key(seed: int, choice: int, position: int) -> int:
    """Fold (seed, choice, position) into 32 bits."""
    key = 0
    for word in (seed & _MASK, seed >> 32, choice, position):
        key = _mix_int(key ^ (word & _MASK))
    return key


def _hash(ids: Tensor, key: int) -> Tensor:
    """32-bit hash of each id under ``key``, as int64 in [0, 2^32)."""
    x = ids * 0x9E3779B1 & _MASK
    x = (x ^ key) & _MASK
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & _MASK
    x = x ^ (x >> 16)
    x = (x + key) & _MASK
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> 16)


def _mix_int(x: int) -> int:
    """The same two-round mixer for one integer, with an offset so that zero moves."""
    x = (x + 0x9E3779B9) & _MASK
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> 16)
