"""Guesses that are no nodes yet, most likely first."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from foredraft.policy.calibration import Bucket


class Option(NamedTuple):
    """A token that may follow a node; it becomes a node if its survival is high enough.

    ``match`` and ``position`` are those of a suffix guess (see `Continuation`); a match of 0 says
    that only the token before it was replaced.
    """

    token: int
    bucket: Bucket
    match: int = 0
    position: int = -1


class OpenOptions:
    """Ordered by (survival, shallower first, older first)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, int, Option]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def best(self) -> float:
        """The highest survival; there must be an option."""
        return -self._heap[0][0]

    def push(self, survival: float, depth: int, parent_id: int, option: Option) -> None:
        heappush(self._heap, (-survival, depth, next(self._numbers), parent_id, option))

    def pop(self) -> tuple[int, Option, float]:
        """The best option: its parent, itself, its survival."""
        survival, _, _, parent_id, option = heappop(self._heap)
        return parent_id, option, -survival

    def clear(self) -> None:
        self._heap.clear()
