"""A few of many, evenly spread, without knowing how many there will be."""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Sample(Generic[Item]):
    """Keeps at least half of ``most`` items once so many came: every n-th, n a power of two."""

    def __init__(self, most: int) -> None:
        self.kept: list[Item] = []
        self._most = most
        self._every = 1
        self._offered = 0

    def offer(self, item: Item) -> None:
        if self._offered % self._every == 0:
            if len(self.kept) == self._most:
                self.kept = self.kept[::2]
                self._every *= 2
            if self._offered % self._every == 0:
                self.kept.append(item)
        self._offered += 1
