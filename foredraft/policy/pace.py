"""What a millisecond of a verify worker is worth, and what a row of its pass must bring."""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 1.0 / 48.0  # weight of the newest step


@dataclass(frozen=True, slots=True)
class Prices:
    """tokens_per_ms: of all sequences together. tokens_per_row: what one row more costs."""

    tokens_per_ms: float = 0.0
    tokens_per_row: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Fading averages over steps; replaced, never changed.

    Tokens are counted per sequence, so that a step of one after steps of many needs no learning.
    plain_ms: what steps would take without guesses.
    """

    steps: int = 0
    tokens_each: float = 0.0
    milliseconds: float = 0.0
    row_ms: float = 0.0
    plain_ms: float = 0.0

    def after(
        self, tokens: float, sequences: int, period_ms: float, row_ms: float, plain_ms: float
    ) -> Pace:
        """With a step of ``sequences`` that brought ``tokens``, ``period_ms`` after the last."""
        weight = max(_MEMORY, 1.0 / (self.steps + 1))
        return Pace(
            self.steps + 1,
            self.tokens_each + weight * (tokens / sequences - self.tokens_each),
            self.milliseconds + weight * (period_ms - self.milliseconds),
            self.row_ms + weight * (row_ms - self.row_ms),
            self.plain_ms + weight * (plain_ms - self.plain_ms),
        )

    def prices(self, sequences: int) -> Prices:
        """For steps of so many sequences; 0 while nothing is known.

        Time is worth no less than plain decoding would make of it, however little it brought.
        """
        if self.milliseconds <= 0.0:
            return Prices()
        plain = 1.0 / self.plain_ms if self.plain_ms > 0.0 else 0.0
        tokens_per_ms = sequences * max(self.tokens_each / self.milliseconds, plain)
        return Prices(tokens_per_ms, tokens_per_ms * self.row_ms)
