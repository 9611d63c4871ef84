"""A target's runner as the engine of a draft: for stand-ins, and to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from draft_service.engine.draft_engine import Extension, Guesses
from draft_service.engine.guesser import Guesser
from foredraft.engine.kv import BLOCK, BlockPool
from foredraft.engine.runner import Runner, SequenceRows
from foredraft.wire.messages import ModelInfo


class RunnerEngine:
    """Has the methods of `LeanEngine`."""

    def __init__(self, runner: Runner, target: ModelInfo) -> None:
        self._runner = runner
        self.info = runner.info
        self.chunk = runner.chunk
        vocab_size = min(target.vocab_size, runner.info.vocab_size)
        self._guesser = Guesser(target, vocab_size, None, torch.device("cpu"))

    @property
    def pool(self) -> BlockPool:
        return self._runner.kv

    def warm_up(self) -> None:
        """There is nothing that a later pass would not do just as well."""

    def prefill(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        self._runner.prefill(blocks, tokens, start)

    def extend(self, batch: Sequence[Extension], meanwhile: Callable[[], None]) -> Guesses:
        meanwhile()
        logits = self._runner.forward([_sequence_rows(one) for one in batch])
        looked: list[int] = []
        total = 0
        for one in batch:
            total += one.rows
            looked += range(total - len(one.looks), total)
        looks = [look for one in batch for look in one.looks]
        logits = logits[looked, : self._guesser.columns].cpu()
        return self._guesser.guesses(logits, looks)

    def move(self, blocks: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
        self._runner.move(blocks, pairs)

    def relocate(self, old: Sequence[int], new: Sequence[int]) -> None:
        both, shift = [*old, *new], len(old) * BLOCK
        self._runner.move(both, [(slot, shift + slot) for slot in range(shift)])


def _sequence_rows(one: Extension) -> SequenceRows:
    base = tuple(range(one.fed, one.fed + len(one.committed)))
    paths = [base[: index + 1] for index in range(len(base))]
    paths += [base + tuple(line) for line in one.lines]
    return SequenceRows(one.blocks, one.fed, [*one.committed, *one.nodes], paths)
