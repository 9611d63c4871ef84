"""Who may take which KV blocks.

A sequence *needs* whole tiles for the tokens it has, the newest included, and for those that
steps which still run may give it. It is admitted with more than that where much is free, in one
piece, so that attention reads it without a copy; what it does not need yet is its reserve, and
counts as free. Needs are met from free blocks, then from the reserves of others, then from the
prefix cache; guesses take free blocks and those of the cache.
"""

from __future__ import annotations

from foredraft.config import PREFIX_SHARE
from foredraft.engine.attention_plan import TILE
from foredraft.engine.kv import BLOCK
from foredraft.engine.runner import Runner
from verify_service.prefix_cache import PrefixCache
from verify_service.sequence import Key, VerifySequence

_TILE_BLOCKS = TILE // BLOCK
_SOON = 32  # tokens that everybody can still get when a sequence is admitted


class Reservations:
    """Blocks of all running sequences, and of the prefix cache."""

    def __init__(self, runner: Runner, prefix_share: float = PREFIX_SHARE) -> None:
        self._runner = runner
        self._pool = runner.kv
        self._prefixes = PrefixCache(runner.kv, runner.chunk, prefix_share)
        self._holders: dict[Key, VerifySequence] = {}  # oldest first

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence needs."""
        reserves = sum(self._reserve(holder) for holder in self._holders.values())
        return self._pool.free_blocks + self._prefixes.blocks + reserves

    def can_ever_admit(self, sequence: VerifySequence) -> bool:
        return self._need(sequence.longest) <= self._pool.total_blocks

    def can_admit(self, sequence: VerifySequence) -> bool:
        """True if all sequences, this one too, could go on for a while: else one of them would
        soon be preempted, and what was computed for it would be lost."""
        held = sum(len(holder.blocks) for holder in self._holders.values())
        soon = sum(
            self._need(min(s.longest, len(s.tokens) + max(_SOON, s.ahead)))
            for s in (*self._holders.values(), sequence)
        )
        return soon <= held + self._pool.free_blocks + self._prefixes.blocks

    def admit(self, sequence: VerifySequence) -> None:
        """Take the sequence's blocks, and copy what is known of its prompt into them.

        It gets all that it may ever need, but of the longest free piece no more than half: that
        leaves room for others, and for itself to grow behind its last block.
        """
        half = self._pool.longest_run // 2 // _TILE_BLOCKS * _TILE_BLOCKS
        plenty = min(self._need(sequence.longest), half)
        sequence.blocks = self._take(max(plenty, self._need(len(sequence.tokens))))
        self._holders[sequence.key] = sequence
        # Rows that are copied have no logits: a prompt that is to be scored is run as a whole.
        known = [] if sequence.scoring else self._prefixes.match(sequence.opened.prompt)
        if known:
            sequence.fed = len(known) * BLOCK
            pairs = [(slot, sequence.fed + slot) for slot in range(sequence.fed)]
            self._runner.move([*known, *sequence.blocks], pairs)
        if sequence.cached is None:
            sequence.cached = sequence.fed

    def extend(self, sequence: VerifySequence) -> bool:
        """Take what the sequence needs; False if others need it."""
        missing = self.missing(sequence)
        if missing > 0:
            if missing > self.free_blocks:
                return False
            sequence.blocks += self._take(missing, after=sequence.blocks[-1])
        return True

    def missing(self, sequence: VerifySequence) -> int:
        """Blocks that the sequence needs and has not."""
        return max(0, self._need_of(sequence) - len(sequence.blocks))

    def holds(self, sequence: VerifySequence) -> bool:
        """True if the sequence is running."""
        return self._holders.get(sequence.key) is sequence

    def can_grow(self, sequence: VerifySequence, entries: int) -> bool:
        """True if the sequence may hold ``entries`` KV entries, guesses included."""
        return self._missing(sequence, entries) <= self._pool.free_blocks + self._prefixes.blocks

    def grow(self, sequence: VerifySequence, entries: int) -> None:
        """Take blocks for guesses. Others' reserves stay: guesses of this step may be in them."""
        missing = self._missing(sequence, entries)
        if missing:
            self._prefixes.make_room(missing)
            sequence.blocks += self._pool.allocate(missing, after=sequence.blocks[-1])

    def release(self, sequence: VerifySequence) -> None:
        """Free the sequence's blocks, but for those of its prompt that the cache takes over."""
        blocks = sequence.blocks
        if not sequence.sound:
            # A mask hides old values from the next owner, but not NaN.
            self._runner.scrub(blocks)
        elif blocks:
            blocks = self._prefixes.adopt(sequence.opened.prompt, blocks)
            if sequence.ahead:  # of what steps write that still run, nothing is known
                self._runner.scrub(blocks)
        self._pool.free(blocks)
        self._holders.pop(sequence.key, None)
        sequence.blocks, sequence.fed, sequence.ahead, sequence.sound = [], 0, 0, False

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        self._prefixes.clear()

    def _take(self, count: int, after: int | None = None) -> list[int]:
        """Blocks for a need: reserves are given back before anything that was computed."""
        for holder in reversed(self._holders.values()):
            spare = min(self._reserve(holder), count - self._pool.free_blocks)
            if spare > 0:
                self._pool.free(holder.blocks[-spare:])
                del holder.blocks[-spare:]
        self._prefixes.make_room(count)
        return self._pool.allocate(count, after)

    def _reserve(self, sequence: VerifySequence) -> int:
        return max(0, len(sequence.blocks) - self._need_of(sequence))

    def _need_of(self, sequence: VerifySequence) -> int:
        """Blocks for the tokens that it has, and for those that it may have already."""
        return self._need(min(sequence.longest, len(sequence.tokens) + sequence.ahead))

    def _need(self, tokens: int) -> int:
        """Blocks of the whole tiles that hold ``tokens``."""
        return -(-tokens // TILE) * _TILE_BLOCKS

    def _missing(self, sequence: VerifySequence, entries: int) -> int:
        return max(0, self._pool.blocks_for(entries) - len(sequence.blocks))
