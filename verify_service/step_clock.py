"""What steps take, and what is learned of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from foredraft.policy.cost import StepCost
from foredraft.wire.messages import StepTimings, VerifyBudget
from verify_service.holder import Hold
from verify_service.sequence import VerifySequence
from verify_service.steps import StepDone


@dataclass(frozen=True, slots=True)
class Started:
    """A step that has not been finished yet, and what it was started with."""

    at: float
    sequences: list[VerifySequence]
    most_rows: int
    held: Hold
    budget: VerifyBudget
    prepare_us: int


class StepClock:
    """``cost``: milliseconds of a step by its rows. ``ended``: when the newest one did.

    ``host_ms``: what the host did for it before it ran and afterwards.
    """

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self.ended = 0.0
        self.host_ms = 0.0
        self._alone = True  # nothing to compare the next step's end with

    def interrupted(self) -> None:
        """Something else comes between the newest step and the next."""
        self._alone = True

    def end(self, step: Started, done: StepDone) -> tuple[float, StepTimings]:
        """A step ends now: when it began, others before it being done, and what it took."""
        now, before = time.perf_counter(), self.ended
        held, period_us = step.held, 0
        if done.rows and not self._alone:  # without rows: all of its sequences had ended
            period_us = round((now - before) * 1e6)
            waited_ms = held.microseconds / 1000
            self.cost = self.cost.observed(done.rows, (now - before) * 1000, waited_ms)
        self.ended, self._alone = now, False
        self.host_ms = (step.prepare_us + done.timings.commit_us) / 1000
        timings = replace(
            done.timings,
            held_us=held.microseconds,
            hold_limit_us=held.limit_us,
            prepare_us=step.prepare_us,
            period_us=period_us,
            row_us=round(self.cost.per_row(done.rows) * 1000),
        )
        return max(step.at, before), timings
