"""How much a sequence's suffix lookups are worth: where they bring nothing they become rare."""

from __future__ import annotations

from dataclasses import dataclass, replace

_MEMORY = 1 / 16  # weight of the newest commit
_PAIRS, _LONG = 0.12, 0.012  # tokens per commit below which only longer matches are looked up
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
        if self.worth >= _PAIRS or self.since >= _PROBE:
            return 1
        return 2 if self.worth >= _LONG else 6

    def after(self, guessed: int) -> SuffixTrust:
        """With a commit of which so many tokens had been guessed."""
        since = 0 if self.shortest == 1 else self.since + 1
        return replace(self, worth=self.worth + _MEMORY * (guessed - self.worth), since=since)
