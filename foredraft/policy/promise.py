"""What became of promises: guesses are worth what they promised, times the share that was kept.

Which guesses are right is chance. A window of some hundred tokens brings a tenth more or less for
no other reason, which is more than ways of running steps differ by. What its guesses promised
does not have that chance in it, and the share that is kept is an average over a long time.
"""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY_TOKENS = 4096.0  # promised tokens that still count
_START_TOKENS = 32.0  # that a promise is kept counts as much as so many, before any is seen


@dataclass(frozen=True, slots=True)
class Promises:
    """Fading sums of promised tokens and of those that came; replaced, never changed."""

    promised: float = _START_TOKENS
    came: float = _START_TOKENS

    @property
    def kept(self) -> float:
        """Share of promised tokens that came; above 1 where estimates are too low."""
        return self.came / self.promised

    def after(self, promised: float, came: float) -> Promises:
        """With those of a step: tokens beyond one per sequence."""
        keep = 1.0 - min(promised / _MEMORY_TOKENS, 1.0)
        return Promises(keep * self.promised + promised, keep * self.came + came)
