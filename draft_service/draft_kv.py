"""Where the draft's KV entries of one sequence lie.

Committed tokens that were fed have their entries at the slots of their positions. Nodes that were
fed lie in slots behind the committed length, in any order. A commit moves the accepted path into
place, so that nothing is computed twice, and drops the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foredraft.engine.kv import BlockPool

Move = tuple[int, int]


class DraftKV:
    """Book-keeping only; `ModelDrafter` makes the entries follow it."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []
        self.fed = 0  # committed tokens whose entries are in place
        self.slots: dict[int, int] = {}  # node id -> slot

    def reserve(self, entries: int) -> bool:
        """Make the block table long enough; False if the pool cannot give that much."""
        missing = self._pool.blocks_for(entries) - len(self.blocks)
        if missing <= 0:
            return True
        if not self._pool.can_allocate(missing):
            return False
        self.blocks += self._pool.allocate(missing)
        return True

    def release(self) -> None:
        """Give all memory back."""
        self._pool.free(self.blocks)
        self.blocks = []
        self.fed = 0
        self.slots = {}

    def place(self, nodes: Iterable[int], committed: int) -> None:
        """Give each node that has none a slot behind ``committed`` entries."""
        free = self._free_slots(committed)
        for node_id in nodes:
            if node_id not in self.slots:
                self.slots[node_id] = next(free)

    def commit(self, path: Sequence[int], before: int, kept: Iterable[int]) -> list[Move]:
        """Re-root after ``path``, the ids of newly committed tokens behind ``before`` others.

        Args:
            kept: ids of the nodes that stay in the tree below the new root.

        Returns:
            Moves (from slot, to slot) that must happen at once, all reads before the writes.
        """
        old = self.slots
        reached = list(takewhile(old.__contains__, path))
        moves = [(old[node_id], before + index) for index, node_id in enumerate(reached)]
        self.fed += len(reached)
        committed = before + len(path)
        self.slots = {node: old[node] for node in kept if node in old}
        free = self._free_slots(committed)
        for node_id, slot in self.slots.items():
            if slot < committed:
                self.slots[node_id] = next(free)
                moves.append((slot, self.slots[node_id]))
        return [move for move in moves if move[0] != move[1]]

    def _free_slots(self, committed: int) -> Iterator[int]:
        taken = set(self.slots.values())
        return (slot for slot in count(committed) if slot not in taken)
