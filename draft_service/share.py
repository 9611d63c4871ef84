"""What one sequence may get of its stream's budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foredraft.policy.node_share import node_share
from foredraft.policy.threshold import LEAST_SURVIVAL
from foredraft.wire.messages import DraftBudget

_LEAST_OF_ROW = 0.5  # what a row must bring changes from step to step


@dataclass(frozen=True, slots=True)
class Share:
    """Limits before its answer is complete, and after; None: nothing is drafted ahead.

    tokens_per_ms: what it costs that the sequence's verify worker waits; 0: it does not, or that
        is not known.
    tokens_per_row: what a node must bring to be verified.
    """

    answer: DraftBudget
    ahead: DraftBudget | None
    tokens_per_ms: float = 0.0
    tokens_per_row: float = 0.0

    @classmethod
    def of(cls, budget: DraftBudget, sequences: int, worker: int) -> Share:
        """For each of ``sequences`` that steps of the target have to serve, at one worker."""
        nodes = node_share(budget.max_nodes_per_sequence, sequences)
        answer = replace(budget, max_nodes_per_sequence=nodes)
        ahead = None
        if budget.ahead_survival > 0.0 and nodes > 0:
            ahead = replace(answer, min_survival=budget.ahead_survival)
        per_ms, per_row = _of(budget.tokens_per_ms, worker), _of(budget.tokens_per_row, worker)
        if per_ms <= 0.0:
            return cls(answer, ahead)
        least = max(min(LEAST_SURVIVAL, budget.min_survival), _LEAST_OF_ROW * per_row)
        return cls(replace(answer, min_survival=least), ahead, per_ms, per_row)

    @property
    def waited_for(self) -> bool:
        """A step of the target waits for the answer, or nothing else is done until it is needed."""
        return self.tokens_per_ms > 0.0 or self.ahead is None

    @property
    def resting(self) -> bool:
        """No guesses are wanted: commits are followed, and that is all."""
        return self.answer.max_nodes_per_sequence == 0


def _of(prices: Sequence[float], worker: int) -> float:
    return prices[worker] if worker < len(prices) else 0.0
