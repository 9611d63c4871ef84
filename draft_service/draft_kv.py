"""Where the draft's KV entries of one sequence lie.

Committed tokens that were fed have their entries at the slots of their positions. Nodes that were
fed lie in slots behind the committed length, in any order. A commit moves the accepted path into
place, so that nothing is computed twice, and drops the rest.

A sequence's blocks are all in one piece. Where the piece cannot grow, the sequence gets a longer
one elsewhere, half as long again as it needs if there is room, so that this becomes rare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foredraft.engine.kv import BlockPool

Move = tuple[int, int]
Relocate = Callable[[Sequence[int], Sequence[int]], None]


class DraftKV:
    """Book-keeping only; `ModelDrafter` makes the entries follow it."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []
        self.fed = 0  # committed tokens whose entries are in place
        self.slots: dict[int, int] = {}  # node id -> slot

    def reserve(self, entries: int, relocate: Relocate) -> bool:
        """Make room for so many; False, and nothing changes, if the pool has no such piece.

        Args:
            relocate: copies all entries from the first blocks to the second.
        """
        needed = self._pool.blocks_for(entries)
        missing = needed - len(self.blocks)
        if missing <= 0:
            return True
        if not self.blocks:
            self.blocks = self._pool.allocate_run(needed) or []
            return bool(self.blocks)
        behind = self._pool.allocate_run(missing, after=self.blocks[-1])
        if behind is not None:
            self.blocks += behind
            return True
        roomy = self._pool.allocate_run(needed + needed // 2) or self._pool.allocate_run(needed)
        if roomy is None:
            return False
        relocate(self.blocks, roomy)
        self._pool.free(self.blocks)
        self.blocks = roomy
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
