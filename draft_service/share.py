"""What one sequence may get of its stream's budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foredraft.policy.node_share import node_share
from foredraft.wire.messages import DraftBudget


@dataclass(frozen=True, slots=True)
class Share:
    """Limits before its answer is complete, and after; None: nothing is drafted ahead."""

    answer: DraftBudget
    ahead: DraftBudget | None

    @classmethod
    def of(cls, budget: DraftBudget, sequences: int) -> Share:
        """For each of ``sequences`` that a step of the target has to serve."""
        nodes = node_share(budget.max_nodes_per_sequence, sequences)
        answer = replace(budget, max_nodes_per_sequence=nodes)
        if budget.ahead_survival <= 0.0 or nodes == 0:
            return cls(answer, None)
        return cls(answer, replace(answer, min_survival=budget.ahead_survival))

    @property
    def resting(self) -> bool:
        """No guesses are wanted: commits are followed, and that is all."""
        return self.answer.max_nodes_per_sequence == 0
