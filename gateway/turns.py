"""The targets that decided a sequence one after another, as the gateway heard them.

A target that is killed tells no more of its part than its steps told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from foredraft.wire.messages import Commit, StepTimings


@dataclass(slots=True)
class Turn:
    """A sequence at one target; moments are values of `perf_counter`.

    ``heard`` is when its last step came, ``silent_us`` how long nothing was heard from then on.
    """

    incarnation: int
    began: float
    heard: float
    steps: int = 0
    verify_us: int = 0
    held_us: int = 0
    silent_us: int = 0

    @property
    def wait_us(self) -> int:
        """What was neither verifying nor held: the prompt, other requests, messages."""
        heard_us = round((self.heard - self.began) * 1e6)
        return max(0, heard_us - self.verify_us - self.held_us)


class Turns:
    def __init__(self) -> None:
        self._opened = 0.0
        self._first = 0
        self._turns: dict[int, list[Turn]] = {}  # by seq_id

    @property
    def last_heard(self) -> int:
        """The sequence whose last step came last; 0 if none was heard."""
        return max(self._turns, key=lambda seq_id: self._turns[seq_id][-1].heard, default=0)

    def opened(self, at: float, incarnation: int) -> None:
        """All sequences were handed to a target by then, as this incarnation."""
        self._opened = at
        self._first = incarnation

    def stepped(self, commit: Commit, own: int, held: int, arrived: float) -> None:
        """``own`` and ``held`` are microseconds: of the step itself, and before it."""
        turns = self._turns.get(commit.seq_id)
        if turns is None:
            turns = self._turns[commit.seq_id] = [self._unheard()]
        if turns[-1].incarnation != commit.incarnation:
            began = arrived - (own + held) / 1e6
            turns.append(Turn(commit.incarnation, began, began))
        turn = turns[-1]
        turn.heard = arrived
        turn.steps += 1
        turn.verify_us += own
        turn.held_us += held

    def lost(self, most: int) -> Iterator[Turn]:
        """The first turns of the sequence that was heard last, each of which another followed."""
        turns = self._turns.get(self.last_heard, [])
        for turn, following in islice(pairwise(turns), most):
            yield replace(turn, silent_us=_between(turn.heard, following.began))

    def newest(self, now: float) -> Turn:
        """The turn that none has followed; one without steps where nothing was heard at all."""
        turns = self._turns.get(self.last_heard, [self._unheard()])
        return replace(turns[-1], silent_us=_between(turns[-1].heard, now))

    def _unheard(self) -> Turn:
        return Turn(self._first, self._opened, self._opened)


def step_us(timings: StepTimings) -> int:
    """A step's own time, from the choice of its nodes to its commits."""
    return timings.prepare_us + timings.forward_us + timings.sample_us + timings.commit_us


def _between(start: float, end: float) -> int:
    return max(0, round((end - start) * 1e6))
