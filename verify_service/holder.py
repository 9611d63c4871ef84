"""Holding a step back for guesses, for as long as that pays."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from foredraft.params import Schedule
from foredraft.policy.hold import HoldState, patience_us
from foredraft.wire.messages import VerifyBudget
from verify_service.scheduler import Scheduler
from verify_service.sequence import Key, VerifySequence


@dataclass(frozen=True, slots=True)
class Hold:
    """How long a step was held, and for the guesses of which sequences."""

    microseconds: int = 0
    waited_for: frozenset[Key] = frozenset()
    limit_us: int = 0


class Holder:
    """``take_within`` takes in one message of those that come within so many seconds.

    It returns False if none came, or if there is to be no further step.
    """

    def __init__(self, scheduler: Scheduler, take_within: Callable[[float], bool]) -> None:
        self._scheduler = scheduler
        self._take_within = take_within
        self._history = HoldState()
        self._interrupted = False

    def told(self, before: VerifyBudget, budget: VerifyBudget) -> None:
        """A new budget has come: the drafter may be another one, or get a fresh chance.

        It ends a hold: what that waits for may never be made now.
        """
        self._interrupted = True
        if budget.drafting != before.drafting:
            self._history = HoldState()
        if budget.schedule is not before.schedule:
            self._history = self._history.on_time()

    def guesses_complete(self) -> None:
        """The drafter has answered for a current root."""
        self._history = self._history.on_time()

    def stepped(self, hold: Hold, *, saved: int, sequences: int) -> None:
        """After a step of ``sequences``, of which ``saved`` used guesses that were waited for."""
        held = bool(hold.waited_for)
        self._history = self._history.stepped(held=held, saved=saved, sequences=sequences)

    def may_hold(self, budget: VerifyBudget, plain_us: float) -> bool:
        """True if the next step is held where a sequence lacks guesses."""
        return self._history.limit_us(budget, plain_us) > 0

    def hold(
        self, budget: VerifyBudget, plain_us: float, lacks: Callable[[VerifySequence], bool]
    ) -> Hold:
        """Wait while guesses are due and the wait pays; not at all where no sequence lacks any.

        Args:
            plain_us: what a step without guesses would take.
        """
        limit_us = self._history.limit_us(budget, plain_us)
        if limit_us <= 0:
            return Hold()
        waited_for = frozenset(s.key for s in self._scheduler.ready() if lacks(s))
        if not waited_for:
            return Hold(limit_us=round(limit_us))
        started = time.perf_counter()
        held_us, first_us, expected = 0.0, 0.0, self._expected()
        self._interrupted = False
        while held_us < limit_us and self._guesses_are_due() and not self._interrupted:
            came = self._take_within((limit_us - held_us) / 1e6)
            held_us = (time.perf_counter() - started) * 1e6
            if not came:
                break
            if (now := self._expected()) > expected:
                first_us = first_us or held_us
                if budget.schedule is not Schedule.SERIAL:
                    more = patience_us(now - expected, now, plain_us + held_us)
                    limit_us = min(held_us + more, float(budget.max_hold_us))
                expected = now
        if not self._interrupted:
            in_vain = first_us == 0.0 and self._guesses_are_due()
            self._history = self._history.held(first_us or held_us, in_vain=in_vain)
        return Hold(round(held_us), waited_for, round(limit_us))

    def _guesses_are_due(self) -> bool:
        return any(sequence.awaits_drafts() for sequence in self._scheduler.ready())

    def _expected(self) -> float:
        """Tokens that a step of all ready sequences and all their guesses promises."""
        return sum(1.0 + sequence.tree.promise() for sequence in self._scheduler.ready())
