"""Gumbel noise as a function of (seed, choice, position, token id): no state, any order.

``h`` is a 32-bit counter hash, ``v = (h + 0.5) / 2^32`` and ``G = -log(-log1p(-v))``, all in
float32. Small v makes large G, and float32 is finest there. v that would round to 1 is held just
below it: minus infinity could not win against others, but it must not be all that filters leave.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK = 0xFFFFFFFF
_BELOW_ONE = 1.0 - 2.0**-24
_GOLDEN = 0x9E3779B1
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B))  # shift, factor


def gumbel(seed: int, choice: int, position: int, vocab: int, device: torch.device) -> Tensor:
    """Noise of every token id at one position: float32 [vocab]."""
    key = noise_key(seed, choice, position)
    if device.type == "cpu":
        return _from_hashes(torch.from_numpy(_hash_on_cpu(_spread_ids(vocab), np.uint32(key))))
    return _from_hashes(_hash(torch.arange(vocab, device=device), key))


def gumbel_of(seed: int, choice: int, position: int, ids: Tensor) -> Tensor:
    """Noise of some token ids, int64 [n], with the bits that `gumbel` gives them: float32 [n]."""
    key = noise_key(seed, choice, position)
    if ids.device.type == "cpu":
        spread = _spread(ids.numpy())
        return _from_hashes(torch.from_numpy(_hash_on_cpu(spread, np.uint32(key))))
    return _from_hashes(_hash(ids, key))


def gumbel_rows(keys: Tensor, ids: Tensor) -> Tensor:
    """`gumbel_of` under many keys at once.

    Args:
        keys: as `noise_key` makes them, int64 [rows, 1], where ``ids`` are.

    Returns:
        float32 [rows, n].
    """
    if ids.device.type == "cpu":
        words = keys.numpy().astype(np.uint32)
        return _from_hashes(torch.from_numpy(_hash_on_cpu(_spread(ids.numpy()), words)))
    return _from_hashes(_hash(ids, keys))


def noise_key(seed: int, choice: int, position: int) -> int:
    """Fold (seed, choice, position) into 32 bits."""
    key = 0
    for word in (seed & _MASK, seed >> 32, choice, position):
        key = _mix_int(key ^ (word & _MASK))
    return key


def _from_hashes(hashes: Tensor) -> Tensor:
    """Each operation in place: a vocabulary of new memory would cost more than its arithmetic."""
    v = hashes.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=_BELOW_ONE)
    return v.neg_().log1p_().neg_().log_().neg_()


def _hash(ids: Tensor, key: int | Tensor) -> Tensor:
    """32-bit hash of each id under ``key``, as int64 in [0, 2^32)."""
    x = ((ids * _GOLDEN & _MASK) ^ key) & _MASK
    x = (_mix(x) + key) & _MASK
    return _mix(x)


def _mix(x: Tensor) -> Tensor:
    for shift, factor in _ROUNDS:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> 16)


def _hash_on_cpu(
    spread: NDArray[np.uint32], key: np.uint32 | NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """`_hash` of spread ids in words that wrap by themselves, ten times as quick."""
    x: NDArray[np.uint32] = spread ^ key
    scratch = np.empty_like(x)
    _mix_in_place(x, scratch)
    x += key
    _mix_in_place(x, scratch)
    return x


def _mix_in_place(x: NDArray[np.uint32], scratch: NDArray[np.uint32]) -> None:
    for shift, factor in _ROUNDS:
        np.right_shift(x, np.uint32(shift), out=scratch)
        x ^= scratch
        x *= np.uint32(factor)
    np.right_shift(x, np.uint32(16), out=scratch)
    x ^= scratch


@lru_cache(maxsize=2)  # a target's vocabulary and a draft's
def _spread_ids(vocab: int) -> NDArray[np.uint32]:
    return _spread(np.arange(vocab))


def _spread(ids: NDArray[np.int64]) -> NDArray[np.uint32]:
    return ids.astype(np.uint32) * np.uint32(_GOLDEN)


def _mix_int(x: int) -> int:
    """The same two-round mixer for one integer, with an offset so that zero moves."""
    x = (x + 0x9E3779B9) & _MASK
    for shift, factor in _ROUNDS:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> 16)
