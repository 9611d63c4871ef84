"""Watches the steps of a verify worker and says how the next ones are to be run."""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.policy.balance import FIRST_WAY, Balance, Way, Window
from foredraft.policy.promise import Promises

# After a change, for as long as both last: what is in flight was made the old way.
_SETTLING_STEPS, _SETTLING_MS = 6, 100.0
_LEAST_STEPS, _LEAST_TOKENS, _LEAST_MS = 16, 192, 150.0  # of a window; less says too little
_MOST_LOST = 12.0  # tokens of each sequence that the best way would be ahead by: no need for more


@dataclass(slots=True)
class _Sums:
    """A window that has not ended; ``bound_ms``: the target's passes alone."""

    settling_ms: float = 0.0
    steps: int = 0
    tokens: int = 0
    tokens_each: float = 0.0  # as promised and usually kept
    milliseconds: float = 0.0
    bound_ms: float = 0.0


class Balancer:
    """Keeps a balance for each size of batch: 1, 2, 3 to 4, 5 to 8, ... sequences.

    Only steps with sequences that may speculate count, and of those only their tokens.
    """

    def __init__(self) -> None:
        self._balances: dict[int, Balance] = {}
        self._size = 0
        self._sums = _Sums()
        self._promises = Promises()
        self._settling_steps, self._settling_ms = 0, 0.0
        self.way = FIRST_WAY

    def stepped(
        self,
        sequences: int,
        speculating: int,
        tokens: int,
        promised: float,
        period_ms: float,
        pass_ms: float,
    ) -> Way:
        """After a step; returns the way for the next ones.

        Args:
            speculating: so many of its ``sequences`` may speculate; they got ``tokens``.
            promised: tokens beyond one for each that its guesses were thought to bring.
            period_ms: since the end of the step before; 0 if that is not known.
            pass_ms: what the target's pass took.
        """
        if not speculating:
            return self.way
        self._look_at(sequences)
        self._promises = self._promises.after(promised, tokens - speculating)
        if self._settling_steps > 0 and self._settling_ms > 0.0:
            self._settling_steps -= 1
            self._settling_ms -= period_ms
            self._sums.settling_ms += period_ms
        elif period_ms > 0.0:
            self._sums.tokens += tokens
            tokens_each = 1.0 + self._promises.kept * promised / speculating
            self._add(tokens_each, period_ms, pass_ms)
        return self.way

    def _look_at(self, sequences: int) -> None:
        """Go on with the balance for that many sequences; a new one begins with the way at hand."""
        size = (sequences - 1).bit_length()
        if size == self._size and self._balances:
            return
        self._size = size
        self._sums = _Sums()
        self._go(self._balances.setdefault(size, Balance(self.way)).way)

    def _add(self, tokens_each: float, period_ms: float, pass_ms: float) -> None:
        sums = self._sums
        sums.steps += 1
        sums.tokens_each += tokens_each
        sums.milliseconds += period_ms
        sums.bound_ms += pass_ms
        balance = self._balances[self._size]
        enough = (
            sums.steps >= _LEAST_STEPS
            and sums.tokens >= _LEAST_TOKENS
            and sums.milliseconds >= _LEAST_MS
        )
        bound = sums.steps / max(sums.bound_ms, 1e-3)
        known = balance.best_rate or bound  # at first: what plain decoding cannot exceed
        if enough or known * sums.milliseconds - sums.tokens_each > _MOST_LOST:
            window = Window(self.way, sums.tokens_each, sums.milliseconds, bound, sums.settling_ms)
            self._balances[self._size] = balance = balance.after(window)
            self._sums = _Sums()
            self._go(balance.way)

    def _go(self, way: Way) -> None:
        if way is not self.way:
            self.way = way
            self._settling_steps, self._settling_ms = _SETTLING_STEPS, _SETTLING_MS
