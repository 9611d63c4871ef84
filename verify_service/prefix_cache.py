"""KV of prompts that were prefilled before, so that the same beginning is not computed twice.

Only whole chunks that prefill made are kept: they were computed in launches at fixed positions, so
they have the bits that this prompt's own prefill would give. A new sequence gets a copy, because
attention reads what lies in one piece; a copied chunk costs a hundredth of a computed one. So no
block is ever shared, and nothing that a guess wrote can get in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from foredraft.engine.kv import BLOCK, BlockPool


@dataclass(frozen=True, slots=True)
class _Chunk:
    """``number`` names the text up to its end; chunks behind it have it as their ``before``."""

    number: int
    blocks: tuple[int, ...]


_START = 0  # the number of the empty text


class PrefixCache:
    """A trie of chunks; the least recently used goes first. Its blocks are free for who needs them.

    ``blocks`` counts them; they are at most ``share`` of the pool.
    """

    def __init__(self, pool: BlockPool, chunk: int, share: float) -> None:
        self._pool = pool
        self._chunk = chunk
        self._limit = int(share * pool.total_blocks)
        self._chunks: dict[
            tuple[int, tuple[int, ...]], _Chunk
        ] = {}  # (before, tokens), oldest first
        self._numbers = count(_START + 1)
        self.blocks = 0

    def match(self, prompt: Sequence[int]) -> list[int]:
        """Blocks of the longest known beginning; the prompt's last token is always left to run."""
        found: list[int] = []
        before = _START
        for tokens in self._cut(prompt):
            chunk = self._chunks.pop((before, tokens), None)
            if chunk is None:
                break
            self._chunks[before, tokens] = chunk
            found += chunk.blocks
            before = chunk.number
        return found

    def adopt(self, prompt: Sequence[int], blocks: Sequence[int]) -> list[int]:
        """Take over the blocks of whole chunks that are new; returns those that are not taken."""
        kept: set[int] = set()
        per_chunk, before = self._chunk // BLOCK, _START
        for number, tokens in enumerate(self._cut(prompt)):
            if (number + 1) * per_chunk > self._limit:
                break
            chunk = self._chunks.pop((before, tokens), None)
            if chunk is None:
                while self.blocks + per_chunk > self._limit:
                    self._drop_oldest()
                own = tuple(blocks[number * per_chunk : (number + 1) * per_chunk])
                chunk = _Chunk(next(self._numbers), own)
                self.blocks += per_chunk
                kept.update(own)
            self._chunks[before, tokens] = chunk
            before = chunk.number
        return [block for block in blocks if block not in kept]

    def make_room(self, count: int) -> None:
        """Give blocks back until ``count`` are free, or nothing is left."""
        while self._chunks and not self._pool.can_allocate(count):
            self._drop_oldest()

    def clear(self) -> None:
        """Give all blocks back."""
        while self._chunks:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        chunk = self._chunks.pop(next(iter(self._chunks)))
        self.blocks -= len(chunk.blocks)
        self._pool.free(chunk.blocks)

    def _cut(self, prompt: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Whole chunks; the last token belongs to none."""
        for start in range(0, len(prompt) - self._chunk, self._chunk):
            yield tuple(prompt[start : start + self._chunk])
