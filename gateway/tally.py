"""What speculation did for one answer, counted from its commits."""

from __future__ import annotations

from foredraft.results import Stats
from foredraft.wire.messages import Commit


class Tally:
    """Tokens and accepted guesses count if they were delivered: nothing follows a stop.

    Steps, hits and verified nodes count as the target made them. Cached tokens are those of the
    first commit: a target that takes the sequence over finds its prompt anew.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._steps = 0
        self._accepted_by_depth: list[int] = []
        self._hit_steps = 0
        self._verified = 0
        self._cached = 0
        self.delivered = 0

    def add(self, commit: Commit, kept: int) -> None:
        """Count a commit of which the first ``kept`` tokens were delivered."""
        if not self._steps:
            self._cached = commit.cached
        self._steps += 1
        self._hit_steps += commit.hit
        self._verified += commit.verified
        self.delivered += kept
        accepted = min(commit.accepted, kept)
        while len(self._accepted_by_depth) < accepted:
            self._accepted_by_depth.append(0)
        for depth in range(accepted):
            self._accepted_by_depth[depth] += 1

    def stats(self) -> Stats:
        return Stats(
            steps=self._steps,
            tokens_per_step=self.delivered / self._steps if self._steps else 0.0,
            accepted_by_depth=list(self._accepted_by_depth),
            hit_steps=self._hit_steps,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self.delivered,
            verified_nodes=self._verified,
            cached_tokens=self._cached,
        )
