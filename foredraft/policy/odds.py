"""A correction of estimates, in log-odds, that follows what they got wrong."""

from __future__ import annotations

import math

_MOST = 2.0  # odds are changed by a factor of 7.4 at most, either way


class OddsShift:
    """Logistic regression with nothing but an intercept, learned outcome by outcome.

    An outcome y of a guess that was given the probability p, shift included, is one Newton step

        shift += (y - p - weight · shift / memory) / (weight + Σ p (1 - p))

    with a fading sum: the gradient and the curvature of the log-likelihood under a prior around 0
    that counts as much as ``weight`` units of p (1 - p), of which an even guess brings a quarter.

    Args:
        memory: outcomes that still count.
    """

    __slots__ = ("_information", "_keep", "_memory", "_weight", "value")

    def __init__(self, memory: float, weight: float) -> None:
        self._memory = memory
        self._keep = 1.0 - 1.0 / memory
        self._weight = weight
        self._information = 0.0
        self.value = 0.0

    def observe(self, estimate: float, chosen: bool) -> None:
        """Take in what became of a guess; ``estimate`` had this shift in it."""
        self._information = self._keep * self._information + estimate * (1.0 - estimate)
        pull = self._weight * self.value / self._memory
        moved = self.value + (chosen - estimate - pull) / (self._weight + self._information)
        self.value = -_MOST if moved < -_MOST else _MOST if moved > _MOST else moved


def shifted(estimate: float, shift: float) -> float:
    """A probability in (0, 1) with ``shift`` added to its log-odds."""
    odds = estimate * math.exp(shift)
    return odds / (1.0 - estimate + odds)
