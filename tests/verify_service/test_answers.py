"""When a step's results leave the engine thread: in order, and never later than the next pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest
from torch import Tensor

from foredraft.config import FakeEngine
from foredraft.engine.attention_plan import SequenceRows
from foredraft.engine.fake import FakeRunner
from foredraft.params import SamplingParams, Schedule
from foredraft.policy.cost import StepCost
from foredraft.wire.codec.verify import Response
from foredraft.wire.messages import (
    Commit,
    Limits,
    ModelInfo,
    OpenSequence,
    OpenSequences,
    StepResult,
    VerifyBudget,
)
from verify_service.reservations import Reservations
from verify_service.scheduler import Scheduler
from verify_service.step_loop import Arrival, StepLoop

INFO = ModelInfo("stand-in", "hash", 64, 256, (1,))


SEQUENCES, TOKENS = 3, 6


class Watched(FakeRunner):
    """Notes of each pass how many commits had been told when it began, and how many it makes."""

    def __init__(self) -> None:
        super().__init__(INFO, FakeEngine(0.0))
        self.told: list[Commit] = []
        self.told_before: list[int] = []
        self.made: list[int] = []

    def forward(self, batch: Sequence[SequenceRows]) -> Tensor:
        self.told_before.append(len(self.told))
        self.made.append(len(batch))
        return super().forward(batch)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("schedule", [Schedule.SERIAL, Schedule.FREE], ids=["serial", "free"])
def test_a_pass_begins_when_all_before_it_is_told(schedule: Schedule) -> None:
    runner = Watched()
    scheduler = Scheduler(Reservations(runner), INFO, Limits(4, 8, 8, runner.kv.total_blocks))

    def publish(stream: int, response: Response) -> None:
        assert isinstance(response, StepResult)
        runner.told += response.commits
        if sum(commit.finish is not None for commit in runner.told) == SEQUENCES:
            loop.stop()

    loop = StepLoop(runner, scheduler, StepCost((1, 2), (1.0, 1.0)), publish)
    loop.inbox.put(Arrival(0, VerifyBudget(8, 0, drafting=False, schedule=schedule)))
    params = SamplingParams(max_tokens=TOKENS)
    opened = tuple(OpenSequence(seq_id, 1, (5, 6), params) for seq_id in range(SEQUENCES))
    loop.inbox.put(Arrival(0, OpenSequences(opened)))
    loop.run()
    assert [*runner.told_before, len(runner.told)] == [0, *accumulate(runner.made)]
    for seq_id in range(SEQUENCES):
        positions = [c.position for c in runner.told if c.seq_id == seq_id]
        assert positions == list(range(2, 2 + TOKENS))
