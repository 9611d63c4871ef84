"""Who may take which KV blocks: no running sequence is ever left without its next token.

Admission promises a sequence the blocks that it may need without any guess. Guesses take blocks
beyond that only while every promise could still be kept.
"""

from __future__ import annotations

from foredraft.engine.kv import BlockPool
from verify_service.sequence import VerifySequence


class Reservations:
    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._promised = 0

    @property
    def free_blocks(self) -> int:
        return self._pool.free_blocks

    def can_ever_admit(self, sequence: VerifySequence) -> bool:
        return sequence.worst_blocks <= self._pool.total_blocks

    def can_admit(self, sequence: VerifySequence) -> bool:
        return sequence.worst_blocks <= self._pool.free_blocks - self._promised

    def admit(self, sequence: VerifySequence) -> None:
        self._promised += sequence.worst_blocks

    def can_grow(self, sequence: VerifySequence, entries: int) -> bool:
        """True if the sequence may hold ``entries`` KV entries."""
        wanted = self._missing(sequence, entries)
        beyond = wanted - min(wanted, self._owed(sequence))
        return beyond <= self._pool.free_blocks - self._promised

    def grow(self, sequence: VerifySequence, entries: int) -> None:
        wanted = self._missing(sequence, entries)
        self._promised -= min(wanted, self._owed(sequence))
        sequence.blocks += self._pool.allocate(wanted)

    def release(self, sequence: VerifySequence) -> None:
        """Give everything back; harmless if there is nothing."""
        self._promised -= self._owed(sequence)
        self._pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.worst_blocks = 0

    def _missing(self, sequence: VerifySequence, entries: int) -> int:
        return max(0, self._pool.blocks_for(entries) - len(sequence.blocks))

    @staticmethod
    def _owed(sequence: VerifySequence) -> int:
        return max(0, sequence.worst_blocks - len(sequence.blocks))
