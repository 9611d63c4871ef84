"""What each gateway allows, and the part of it that one sequence gets."""

from __future__ import annotations

from dataclasses import replace

from draft_service.sequence import DraftSequence
from draft_service.share import Share
from foredraft.wire.messages import DraftBudget, Limits

_MIN_SURVIVAL = 0.1  # until a gateway sends a budget


class Budgets:
    """``priced`` False: no draft model, so nothing that is guessed costs time."""

    def __init__(self, limits: Limits, *, priced: bool) -> None:
        self._priced = priced
        self._default = DraftBudget(limits.max_nodes, limits.max_depth, _MIN_SURVIVAL)
        self._by_stream: dict[int, DraftBudget] = {}  # as they were sent
        self._shares: dict[tuple[int, int], Share] = {}  # by stream and verify worker
        self._sequences = 0  # that share them

    def __len__(self) -> int:
        return len(self._by_stream)

    def set(self, stream: int, budget: DraftBudget) -> bool:
        """Returns False if only prices are new: what was answered stays answered then."""
        before = self._by_stream.get(stream)
        self._by_stream[stream] = budget
        self._shares.clear()
        return before is None or _unpriced(before) != _unpriced(budget)

    def forget(self, stream: int) -> None:
        self._by_stream.pop(stream, None)
        self._shares.clear()

    def forget_prices(self) -> None:
        """There is no draft model any more."""
        self._priced = False
        self._shares.clear()

    def divide(self, sequences: int) -> None:
        """From now on there are so many."""
        self._sequences = sequences
        self._shares.clear()

    def share(self, sequence: DraftSequence) -> Share:
        """A sequence's part."""
        share = self._shares.get(sequence.home)
        if share is None:
            stream, worker = sequence.home
            budget = self._by_stream.get(stream, self._default)
            if not self._priced:
                budget = _unpriced(budget)
            share = Share.of(budget, self._sequences, worker)
            self._shares[sequence.home] = share
        return share


def _unpriced(budget: DraftBudget) -> DraftBudget:
    return replace(budget, tokens_per_ms=(), tokens_per_row=())
