"""Runaway repetition: where an answer starts to say the same over and over.

Guesses of such text are nearly always right, so a few answers of that kind would decide a mean.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 32  # tokens
LEAST_PERIODS = 3
LEAST_TOKENS = 64


def loop_start(tokens: Sequence[int]) -> int:
    """Index from which the answer repeats a short period to its end; its length if nowhere.

    A loop has a period of at most 32 tokens, at least three periods and at least 64 tokens. Of
    several periods the one that reaches back furthest counts.
    """
    starts = (_periodic_tail(tokens, period) for period in range(1, LONGEST_PERIOD + 1))
    return min(starts)


def _periodic_tail(tokens: Sequence[int], period: int) -> int:
    start = len(tokens) - period
    while start > 0 and tokens[start - 1] == tokens[start - 1 + period]:
        start -= 1
    long_enough = len(tokens) - start >= max(LEAST_PERIODS * period, LEAST_TOKENS)
    return start if long_enough else len(tokens)
