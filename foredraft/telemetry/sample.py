"""A few of many, evenly spread, without knowing how many there will be."""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Sample(Generic[Item]):
    """Wants at least half of ``most`` items once so many came: every n-th, n a power of two."""

    def __init__(self, most: int) -> None:
        self.kept: list[Item] = []
        self._most = most
        self._every = 1
        self._seen = 0

    def wants(self) -> bool:
        """One more has come: whether it is to be kept, which needs to be made only then."""
        due = self._seen % self._every == 0
        if due and len(self.kept) == self._most:
            self.kept = self.kept[::2]
            self._every *= 2
            due = self._seen % self._every == 0
        self._seen += 1
        return due

    def keep(self, item: Item) -> None:
        self.kept.append(item)
