"""Who may take which KV blocks: no running sequence is ever left without its next token.

Admission takes the blocks that a sequence may need without any guess, whole tiles in one piece if
possible, so that attention reads them without a copy. Guesses take blocks beyond that while some
are free.
"""

from __future__ import annotations

from foredraft.config import PREFIX_SHARE
from foredraft.engine.attention_plan import TILE
from foredraft.engine.kv import BLOCK
from foredraft.engine.runner import Runner
from verify_service.prefix_cache import PrefixCache
from verify_service.sequence import VerifySequence


class Reservations:
    """Blocks that only the prefix cache holds count as free: it gives way to everything."""

    def __init__(self, runner: Runner, prefix_share: float = PREFIX_SHARE) -> None:
        self._runner = runner
        self._pool = runner.kv
        self._prefixes = PrefixCache(runner.kv, runner.chunk, prefix_share)

    @property
    def free_blocks(self) -> int:
        return self._pool.free_blocks + self._prefixes.blocks

    def can_ever_admit(self, sequence: VerifySequence) -> bool:
        return self._worst(sequence) <= self._pool.total_blocks

    def can_admit(self, sequence: VerifySequence) -> bool:
        return self._worst(sequence) <= self.free_blocks

    def admit(self, sequence: VerifySequence) -> None:
        """Take the sequence's blocks, and copy what is known of its prompt into them."""
        sequence.blocks = self._take(self._worst(sequence))
        known = self._prefixes.match(sequence.opened.prompt)
        if known:
            sequence.cached = sequence.fed = len(known) * BLOCK
            pairs = [(slot, sequence.fed + slot) for slot in range(sequence.fed)]
            self._runner.move([*known, *sequence.blocks], pairs)

    def can_grow(self, sequence: VerifySequence, entries: int) -> bool:
        """True if the sequence may hold ``entries`` KV entries."""
        return self._missing(sequence, entries) <= self.free_blocks

    def grow(self, sequence: VerifySequence, entries: int) -> None:
        missing = self._missing(sequence, entries)
        if missing:
            sequence.blocks += self._take(missing, after=sequence.blocks[-1])

    def release(self, sequence: VerifySequence) -> None:
        """Free the sequence's blocks, but for those of its prompt that the cache takes over."""
        blocks = sequence.blocks
        if not sequence.sound:
            # A mask hides old values from the next owner, but not NaN.
            self._runner.scrub(blocks)
        elif blocks:
            blocks = self._prefixes.adopt(sequence.opened.prompt, blocks)
        self._pool.free(blocks)
        sequence.blocks = []

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        self._prefixes.clear()

    def _take(self, count: int, after: int | None = None) -> list[int]:
        self._prefixes.make_room(count)
        return self._pool.allocate(count, after)

    def _worst(self, sequence: VerifySequence) -> int:
        whole_tiles = -(-sequence.longest // TILE) * TILE
        return self._pool.blocks_for(whole_tiles)

    def _missing(self, sequence: VerifySequence, entries: int) -> int:
        return max(0, self._pool.blocks_for(entries) - len(sequence.blocks))
