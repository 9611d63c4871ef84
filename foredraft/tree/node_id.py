"""Node ids: a 64-bit hash of a path, so that every process names a path alike.

The id of a node is a function of its parent's id and its token, and the chain starts at the
sequence's incarnation. Two trees that never met agree on every id they share.
"""

from __future__ import annotations

from collections.abc import Iterable

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def start_id(seq_id: int, incarnation: int) -> int:
    """Id of the empty path of a sequence."""
    return child_id(seq_id * _GOLDEN + incarnation + 1, token=-1)


def child_id(parent_id: int, token: int) -> int:
    """Id of the path that ends with ``token`` after the path ``parent_id``.

    The finalizer of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64-bit integers, of
    ``parent_id ^ (token + 1) * golden``.
    """
    value = (parent_id ^ (token + 1) * _GOLDEN) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def path_id(parent_id: int, tokens: Iterable[int]) -> int:
    """Id of the path that goes on with ``tokens`` after the path ``parent_id``."""
    node = parent_id
    for token in tokens:
        node = child_id(node, token)
    return node


def signed(node_id: int) -> int:
    """The 64 bits of an id as a device holds them."""
    return node_id - (1 << 64) if node_id >> 63 else node_id
