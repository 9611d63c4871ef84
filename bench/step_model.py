"""What a step is taken to cost where no target runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foredraft.policy.pace import Pace
from foredraft.wire.messages import DraftBudget, DraftTimings


@dataclass(slots=True)
class Work:
    """Of the drafter, in microseconds and passes of its model."""

    suffix_us: int = 0
    model_us: int = 0
    passes: int = 0

    def add(self, timings: DraftTimings) -> None:
        self.suffix_us += timings.suffix_us
        self.model_us += timings.model_us
        self.passes += timings.model_passes


@dataclass(frozen=True, slots=True)
class StepModel:
    """``step_ms + row_ms · rows`` for the target, and before it the draft model's passes.

    pass_ms: of the draft model; None: as measured in the replay itself.
    """

    step_ms: float
    row_ms: float
    pass_ms: float | None = None

    def __call__(self, rows: int) -> float:
        """Milliseconds of the target's step."""
        return self.step_ms + self.row_ms * rows

    def passes_ms(self, work: Work) -> float:
        """Milliseconds of the draft model."""
        return work.model_us / 1000 if self.pass_ms is None else self.pass_ms * work.passes


class PricedBudget:
    """A budget with what time and rows are worth, followed from step to step as a gateway does."""

    def __init__(self, budget: DraftBudget, step: StepModel) -> None:
        self._budget = budget
        self._step = step
        self._pace = Pace()

    def after(self, tokens: int, sequences: int, rows: int, work: Work) -> DraftBudget:
        """What drafters are told after a step of so many sequences and rows that work preceded."""
        period_ms = self._step(rows) + self._step.passes_ms(work)
        self._pace = self._pace.after(
            tokens, sequences, period_ms, self._step.row_ms, self._step(sequences)
        )
        prices = self._pace.prices(sequences)
        return replace(
            self._budget,
            tokens_per_ms=(prices.tokens_per_ms,),
            tokens_per_row=(prices.tokens_per_row,),
        )
