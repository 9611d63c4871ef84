"""Steps that the host prepares and decides: the model gives logits, all else is Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from foredraft.engine.runner import Runner
from foredraft.policy.cost import StepCost
from foredraft.wire.messages import NodeGroup
from verify_service.profile import profile_steps
from verify_service.reservations import Reservations
from verify_service.sequence import VerifySequence
from verify_service.step import TreeRows, run, select
from verify_service.steps import StepDone


class HostSteps:
    """As `Steps` says; a step is run where it is finished."""

    behind = 0
    stalled = False

    def __init__(self, runner: Runner, memory: Reservations) -> None:
        self._runner = runner
        self._memory = memory
        self._trees: list[TreeRows] = []

    def warm(self) -> StepCost:
        return profile_steps(self._runner)

    def attach(self, sequence: VerifySequence, group: NodeGroup) -> None:
        sequence.attach(group)

    def may_follow(self, ready: Sequence[VerifySequence]) -> bool:
        return True

    def start(self, ready: Sequence[VerifySequence], max_nodes: int, cost: StepCost) -> int:
        self._trees = select(ready, max_nodes, cost, self._memory)
        return sum(len(tree.tokens) for tree in self._trees)

    def finish(self) -> StepDone:
        outcomes, timings = run(self._runner, self._trees)
        promised: defaultdict[int, float] = defaultdict(float)
        for tree in self._trees:
            promised[tree.sequence.stream] += tree.promised
        rows = sum(len(tree.tokens) for tree in self._trees)
        return StepDone(outcomes, timings, rows, promised)
