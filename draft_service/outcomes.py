"""Counts of what became of guesses, told now and then: predicted beside real acceptance."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from draft_service.sequence import Judged
from foredraft.wire.messages import OUTCOME_BINS, OUTCOME_DEPTHS, GuessOutcomes, Source

_SECONDS = 1.0  # between two messages that tell them


class Outcomes:
    """Those of one stream, since they were told last."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Source, int, int], tuple[int, float, int]] = {}
        self._judged: list[Judged] = []  # not counted yet
        self._told = -inf

    def add(self, judged: Iterable[Judged]) -> None:
        self._judged += judged

    def count(self) -> None:
        """Take in what was added; there is time for it."""
        judged, self._judged = self._judged, []
        for source, depth, confidence, chosen in judged:
            tenth = min(int(confidence * OUTCOME_BINS), OUTCOME_BINS - 1)
            key = source, min(depth, OUTCOME_DEPTHS), tenth
            guesses, predicted, accepted = self._counts.get(key, (0, 0.0, 0))
            self._counts[key] = guesses + 1, predicted + confidence, accepted + chosen

    def take(self, now: float) -> tuple[GuessOutcomes, ...]:
        """What is to be told at ``now``, in seconds: nothing if that was done a moment ago."""
        if now - self._told < _SECONDS:
            return ()
        self.count()
        if not self._counts:
            return ()
        self._told = now
        counts, self._counts = self._counts, {}
        return tuple(GuessOutcomes(*key, *sums) for key, sums in counts.items())
