"""Who may take which KV blocks: no running sequence is ever left without its next token.

Admission takes the blocks that a sequence may need without any guess, whole tiles in one piece if
possible, so that attention reads them without a copy. Guesses take blocks beyond that while some
are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foredraft.engine.attention_plan import TILE
from foredraft.engine.kv import BlockPool
from verify_service.sequence import VerifySequence


class Reservations:
    """``scrub`` zeroes blocks: a mask hides old values from the next owner, but not NaN."""

    def __init__(self, pool: BlockPool, scrub: Callable[[Sequence[int]], None]) -> None:
        self._pool = pool
        self._scrub = scrub

    @property
    def free_blocks(self) -> int:
        return self._pool.free_blocks

    def can_ever_admit(self, sequence: VerifySequence) -> bool:
        return self._worst(sequence) <= self._pool.total_blocks

    def can_admit(self, sequence: VerifySequence) -> bool:
        return self._pool.can_allocate(self._worst(sequence))

    def admit(self, sequence: VerifySequence) -> None:
        sequence.blocks = self._pool.allocate(self._worst(sequence))

    def can_grow(self, sequence: VerifySequence, entries: int) -> bool:
        """True if the sequence may hold ``entries`` KV entries."""
        return self._pool.can_allocate(self._missing(sequence, entries))

    def grow(self, sequence: VerifySequence, entries: int) -> None:
        missing = self._missing(sequence, entries)
        if missing:
            sequence.blocks += self._pool.allocate(missing, after=sequence.blocks[-1])

    def release(self, sequence: VerifySequence) -> None:
        if not sequence.sound:
            self._scrub(sequence.blocks)
        self._pool.free(sequence.blocks)
        sequence.blocks = []

    def _worst(self, sequence: VerifySequence) -> int:
        whole_tiles = -(-sequence.longest // TILE) * TILE
        return self._pool.blocks_for(whole_tiles)

    def _missing(self, sequence: VerifySequence, entries: int) -> int:
        return max(0, self._pool.blocks_for(entries) - len(sequence.blocks))
