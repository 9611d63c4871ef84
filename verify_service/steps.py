"""How steps are run: what the step loop needs of them, wherever trees and sequences live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from foredraft.policy.cost import StepCost
from foredraft.wire.messages import NodeGroup, StepTimings
from verify_service.sequence import VerifySequence
from verify_service.step import Outcome


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a step did. promised: tokens that its nodes were thought to bring, by stream."""

    outcomes: Sequence[Outcome]
    timings: StepTimings
    rows: int
    promised: Mapping[int, float]


class Steps(Protocol):
    """Steps are started and finished in the same order.

    behind: how many may have been started and not been finished when the next one is.
    stalled: the newest start took time that none like it will take again.
    """

    behind: int
    stalled: bool

    def warm(self) -> StepCost:
        """Make ready what any step may need; returns what steps cost."""
        ...

    def attach(self, sequence: VerifySequence, group: NodeGroup) -> None:
        """Take in guesses."""
        ...

    def may_follow(self, ready: Sequence[VerifySequence]) -> bool:
        """False if all that were started have to be finished before one of ``ready`` is started."""
        ...

    def start(self, ready: Sequence[VerifySequence], max_nodes: int, cost: StepCost) -> int:
        """Start a step of all ``ready`` sequences; returns how many rows it has at most."""
        ...

    def finish(self) -> StepDone:
        """Wait for the oldest that was started, and take in what it did.

        If it fails, all that were started have failed.
        """
        ...
