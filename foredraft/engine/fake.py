"""A stand-in for a model with known times and known guesses, for tests and for tuning policies.

A next token is a function of the whole path before it. The stand-in's KV holds, for every slot,
the id of the path that ends there, so it is as sensitive to misplaced entries as a real model: a
wrong move or a stale slot changes the text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.config import FakeEngine
from foredraft.engine.attention_plan import TILE, SequenceRows
from foredraft.engine.kv import BLOCK, BlockPool
from foredraft.tree.node_id import child_id, start_id
from foredraft.wire.messages import ModelInfo

_BLOCKS = 1 << 16
_EMPTY = start_id(0, 0)
_FIRST_TOKEN = 3  # below are the special tokens; the text never ends by itself
_IMPOSSIBLE = -30.0
# Shares in which the target's token is among the first 1, 2 and 4 of a small trained draft, here
# those of a pruned 4-layer draft of a 135M model; others scale with the first.
_TOP_1, _TOP_2, _TOP_4 = 0.754, 0.838, 0.886
_CANDIDATES = 4


class FakeRunner:
    """Has the methods of `ModelRunner`; ``settings.acceptance`` None makes it the target.

    Every pass takes ``settings.step_ms``, whatever its rows.
    """

    chunk = TILE

    def __init__(self, info: ModelInfo, settings: FakeEngine) -> None:
        self.info = info
        self.kv = BlockPool(_BLOCKS)
        self._seconds = settings.step_ms / 1000
        self._shares = _shares(settings.acceptance)
        self._paths: dict[int, int] = {}  # physical slot -> id of the path that ends there

    @property
    def longest(self) -> int:
        return self.chunk

    def prefill(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        """Write the entries of one chunk of prompt."""
        ready = time.perf_counter() + self._seconds
        self._run_chunk(blocks, tokens, start)
        _sleep_until(ready)

    def prefill_scored(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> Tensor:
        """`prefill` that returns logits as `forward` does."""
        ready = time.perf_counter() + self._seconds
        logits = self._logits(self._run_chunk(blocks, tokens, start))
        _sleep_until(ready)
        return logits

    def forward(self, batch: Sequence[SequenceRows]) -> Tensor:
        """Write the rows' entries; logits float32 [rows, vocab]."""
        ready = time.perf_counter() + self._seconds
        ids: list[int] = []
        for rows in batch:
            for token, path in zip(rows.tokens, rows.paths, strict=True):
                slot = path[-2] if len(path) > 1 else rows.context - 1
                node_id = child_id(self._above(rows.blocks, slot), token)
                self._paths[_physical(rows.blocks, path[-1])] = node_id
                ids.append(node_id)
        logits = self._logits(ids)
        _sleep_until(ready)
        return logits

    def move(self, blocks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy entries from slot to slot, empty ones too; all reads come before the writes."""
        read = [self._paths.get(_physical(blocks, source)) for source, _ in pairs]
        for (_, target), path in zip(pairs, read, strict=True):
            self._paths.pop(_physical(blocks, target), None)
            if path is not None:
                self._paths[_physical(blocks, target)] = path

    def scrub(self, blocks: Sequence[int]) -> None:
        """Drop the entries of ``blocks``."""
        for block in blocks:
            for slot in range(block * BLOCK, (block + 1) * BLOCK):
                self._paths.pop(slot, None)

    def _run_chunk(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> list[int]:
        """The ids of the paths that end at the chunk's tokens."""
        ids: list[int] = []
        above = self._above(blocks, start - 1)
        for slot, token in enumerate(tokens, start):
            above = self._paths[_physical(blocks, slot)] = child_id(above, token)
            ids.append(above)
        return ids

    def _above(self, blocks: Sequence[int], slot: int) -> int:
        return _EMPTY if slot < 0 else self._paths[_physical(blocks, slot)]

    def _logits(self, ids: Sequence[int]) -> Tensor:
        vocab = self.info.vocab_size
        if not self._shares:
            logits = torch.full((len(ids), vocab), _IMPOSSIBLE)
            columns = torch.tensor([[next_token(node_id, vocab)] for node_id in ids])
            return logits.scatter_(1, columns, 0.0)
        rest = (1.0 - sum(self._shares)) / (vocab - _CANDIDATES)
        logits = torch.full((len(ids), vocab), math.log(rest) if rest > 0 else _IMPOSSIBLE)
        columns = torch.tensor([self._candidates(node_id) for node_id in ids])
        chances = torch.tensor([math.log(max(share, 1e-9)) for share in self._shares])
        return logits.scatter_(1, columns, chances.expand(len(ids), -1))

    def _candidates(self, node_id: int) -> list[int]:
        """The draft's best tokens; the target's is among them as often as its shares say."""
        vocab = self.info.vocab_size
        right = next_token(node_id, vocab)
        wrong = [
            _FIRST_TOKEN + (right - _FIRST_TOKEN + step) % (vocab - _FIRST_TOKEN)
            for step in range(1, _CANDIDATES + 1)
        ]
        drawn = child_id(node_id, vocab) / 2.0**64
        for rank, share in enumerate(self._shares):
            drawn -= share
            if drawn < 0:
                return [*wrong[:rank], right, *wrong[rank : _CANDIDATES - 1]]
        return wrong


def next_token(node_id: int, vocab: int) -> int:
    """What the target says after the path ``node_id``."""
    return _FIRST_TOKEN + node_id % (vocab - _FIRST_TOKEN)


def _shares(acceptance: float | None) -> tuple[float, ...]:
    """How often the target's token is the draft's first, second, third, fourth."""
    if acceptance is None:
        return ()
    later = (_TOP_4 - _TOP_2) / 2
    scale = min(acceptance / _TOP_1, 1.0 / _TOP_4)
    return tuple(scale * share for share in (_TOP_1, _TOP_2 - _TOP_1, later, later))


def _physical(blocks: Sequence[int], slot: int) -> int:
    return blocks[slot // BLOCK] * BLOCK + slot % BLOCK


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)
