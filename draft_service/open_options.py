"""Guesses that are no nodes yet, most likely first."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from foredraft.policy.bucket import Bucket


class Trail(NamedTuple):
    """How a suffix guess came about, so that it can be followed.

    match: how many of the last tokens stood before it there; 0: some were replaced.
    position: where it stands, counted over the text and the path behind it.
    added, back: so many tokens from it on belong to a replacement, behind which the text goes on
        at ``back``; 0 where nothing is replaced.
    elsewhere: it stands in a text that is kept of another request, and so does ``position``.
    """

    match: int
    position: int
    added: int = 0
    back: int = -1
    elsewhere: bool = False


class Option(NamedTuple):
    """A token that may follow a node; it becomes a node if its survival is high enough.

    trail: where a suffix guess stands.
    """

    token: int
    bucket: Bucket
    trail: Trail | None = None


class OpenOptions:
    """Ordered by (survival, shallower first, older first)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, int, Option]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, survival: float, depth: int, parent_id: int, option: Option) -> None:
        heappush(self._heap, (-survival, depth, next(self._numbers), parent_id, option))

    def pop(self, least: float) -> tuple[int, Option, float] | None:
        """The best option: its parent, itself, its survival; None if that is below ``least``."""
        heap = self._heap
        if not heap or -heap[0][0] < least:
            return None
        survival, _, _, parent_id, option = heappop(heap)
        return parent_id, option, -survival

    def clear(self) -> None:
        self._heap.clear()
