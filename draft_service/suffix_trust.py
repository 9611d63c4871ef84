"""How much a sequence's suffix lookups are worth: where they bring nothing they become rare."""

from __future__ import annotations

from dataclasses import dataclass

from draft_service.suffix_cache import LONG, PAIR

_MEMORY = 1 / 16  # weight of the newest commit
_WORTH_ALL, _WORTH_PAIRS = 0.12, 0.012  # guessed tokens per commit
_PROBE = 8  # commits after which a look-up of everything is tried again


@dataclass(frozen=True, slots=True)
class SuffixTrust:
    """Replaced with every commit, never changed.

    worth: tokens of a commit that were guessed, on average. since: commits since everything was
    looked up, if that is not done always.
    """

    worth: float = 0.5
    since: int = 0

    @property
    def shortest(self) -> int:
        """Matches of fewer tokens are not looked up now."""
        if self.worth >= _WORTH_ALL or self.since >= _PROBE:
            return 1
        return PAIR if self.worth >= _WORTH_PAIRS else LONG

    def after(self, guessed: int) -> SuffixTrust:
        """With a commit of which so many tokens had been guessed."""
        since = 0 if self.shortest == 1 else self.since + 1
        return SuffixTrust(self.worth + _MEMORY * (guessed - self.worth), since)
