"""What a verify worker's time is worth to its drafters, from the steps that it tells of."""

from __future__ import annotations

from foredraft.policy.pace import Pace, Prices

_MOVED = 0.15  # a price that is off by less says the same
_LEAST_MS = 250.0  # between two of them


class Pricing:
    """Follows the steps of one worker."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._sequences = 0
        self._told = Prices()
        self._since_ms = 0.0

    def stepped(
        self, tokens: int, sequences: int, period_ms: float, row_ms: float, plain_ms: float
    ) -> None:
        """After a step of ``sequences``; ``period_ms`` 0: the time since the last is not known.

        ``plain_ms``: what it would have taken without guesses.
        """
        if sequences == 0 or period_ms <= 0.0:
            return
        self._sequences = sequences
        self._since_ms += period_ms
        self._pace = self._pace.after(tokens, sequences, period_ms, row_ms, plain_ms)

    @property
    def moved(self) -> bool:
        """True if drafters should hear of new prices; of the first ones at once."""
        now, told = self._pace.prices(self._sequences), self._told
        return (self._since_ms >= _LEAST_MS or told == Prices()) and (
            _differ(now.tokens_per_ms, told.tokens_per_ms)
            or _differ(now.tokens_per_row, told.tokens_per_row)
        )

    def tell(self) -> Prices:
        """The prices of now, which are told."""
        self._told = self._pace.prices(self._sequences)
        self._since_ms = 0.0
        return self._told


def _differ(now: float, before: float) -> bool:
    return abs(now - before) > _MOVED * max(now, before)
