"""Steps that are started before what the one before them did is known."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from foredraft.config import FakeEngine
from foredraft.engine.fake import FakeRunner
from foredraft.params import FinishReason, SamplingParams, Schedule
from foredraft.policy.cost import StepCost
from foredraft.wire.codec.verify import Response
from foredraft.wire.messages import (
    CloseSequence,
    CloseSequences,
    Limits,
    ModelInfo,
    NodeBatch,
    NodeGroup,
    OpenSequence,
    OpenSequences,
    SequenceErrors,
    Source,
    StepResult,
    StepTimings,
    VerifyBudget,
)
from verify_service.acceptance import Ending
from verify_service.reservations import Reservations
from verify_service.scheduler import Scheduler
from verify_service.sequence import VerifySequence
from verify_service.step import committed
from verify_service.step_loop import Arrival, StepLoop
from verify_service.steps import StepDone

INFO = ModelInfo("stand-in", "hash", 64, 256, (1,))
TOKEN, LONG = 7, 10_000.0  # milliseconds
GUESSES = VerifyBudget(8, 0, drafting=True, schedule=Schedule.FREE)


class Late(FakeRunner):
    """Steps that are finished one late, and say the same token at any place."""

    behind = 1
    stalled = False

    def __init__(self) -> None:
        super().__init__(INFO, FakeEngine(0.0))
        self.events: list[str] = []
        self.nodes: list[int] = []
        self.running: deque[list[VerifySequence]] = deque()
        self.fails = False
        self.memory = Reservations(self)

    def prefill(self, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        self.events.append("prompt")
        super().prefill(blocks, tokens, start)

    def attach(self, sequence: VerifySequence, group: NodeGroup) -> None:
        sequence.attach(group)

    def may_follow(self, ready: Sequence[VerifySequence]) -> bool:
        return True

    def start(self, ready: Sequence[VerifySequence], max_nodes: int, cost: StepCost) -> int:
        self.events.append("start")
        self.nodes.append(sum(len(sequence.tree) for sequence in ready))
        self.running.append(list(ready))
        return len(ready)

    def finish(self) -> StepDone:
        self.events.append("finish")
        sequences = [one for one in self.running.popleft() if self.memory.holds(one)]
        if self.fails:
            self.running.clear()
            raise RuntimeError("secret")
        outcomes = []
        for sequence in sequences:
            finish = FinishReason.LENGTH if sequence.budget == 1 else None
            outcomes.append(committed(sequence, 0, 1, Ending((TOKEN,), finish), ()))
        return StepDone(outcomes, StepTimings(), len(outcomes), {})


class Loop:
    def __init__(self, milliseconds: float = 1.0) -> None:
        self.steps, self.told = Late(), list[Response]()
        memory = self.steps.memory
        scheduler = Scheduler(memory, INFO, Limits(4, 8, 8, self.steps.kv.total_blocks))
        cost = StepCost((1, 2), (milliseconds, milliseconds))
        self.loop = StepLoop(
            self.steps, scheduler, cost, lambda _, said: self.told.append(said), steps=self.steps
        )

    def send(self, request: OpenSequences | CloseSequences | VerifyBudget | NodeBatch) -> None:
        self.loop.inbox.put(Arrival(0, request))

    def open(self, seq_id: int, prompt: tuple[int, ...], max_tokens: int) -> None:
        opened = OpenSequence(seq_id, 1, prompt, SamplingParams(max_tokens=max_tokens))
        self.send(OpenSequences((opened,)))

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.loop.overlapped()
        self.loop.answers.tell()

    @property
    def positions(self) -> list[tuple[int, int]]:
        steps = [said for said in self.told if isinstance(said, StepResult)]
        return [(commit.seq_id, commit.position) for step in steps for commit in step.commits]


def test_what_a_step_did_is_told_while_the_next_one_runs() -> None:
    loop = Loop()
    loop.open(0, (5,), max_tokens=3)
    loop.turns(3)
    assert loop.steps.events == ["start", "start", "finish", "start", "finish"]
    assert loop.positions == [(0, 1), (0, 2)]
    loop.turns(1)
    assert loop.positions == [(0, 1), (0, 2), (0, 3)]


def test_a_prompt_is_read_when_nothing_runs() -> None:
    loop = Loop()
    loop.open(0, (5,), max_tokens=9)
    loop.turns(2)
    loop.open(1, (5, 6, 7), max_tokens=9)
    loop.turns(1)
    assert loop.steps.events[-3:] == ["finish", "prompt", "start"]


def test_what_is_in_flight_for_a_closed_sequence_is_dropped() -> None:
    loop = Loop()
    loop.send(GUESSES)
    loop.open(0, (5,), max_tokens=9)
    loop.open(1, (6,), max_tokens=9)
    loop.turns(2)
    loop.send(CloseSequences((CloseSequence(0, 1), CloseSequence(1, 1))))
    loop.open(2, (6,), max_tokens=9)
    loop.turns(2)
    assert loop.positions == [(0, 1), (1, 1), (2, 1)]


def test_a_step_that_fails_ends_what_ran_with_it_once() -> None:
    loop = Loop()
    loop.open(0, (5,), max_tokens=9)
    loop.turns(1)
    loop.open(1, (6,), max_tokens=9)
    loop.steps.fails = True
    loop.turns(1)
    failed = [said for said in loop.told if isinstance(said, SequenceErrors)]
    assert [error.seq_id for said in failed for error in said.errors] == [0, 1]
    loop.steps.fails = False
    loop.open(2, (5,), max_tokens=2)
    loop.turns(3)
    assert loop.positions == [(2, 1), (2, 2)]


def test_guesses_that_come_while_a_step_runs_are_in_the_next() -> None:
    loop = Loop(LONG)
    loop.send(GUESSES)
    loop.open(0, (5,), max_tokens=9)
    loop.turns(1)
    (running,) = loop.steps.running
    root = running[0].tree.root_id
    group = NodeGroup(0, 1, root, True, (9,), (root,), (0.5,), (Source.MODEL,))
    later = threading.Timer(0.05, loop.send, [NodeBatch((group,))])
    later.start()
    loop.turns(1)
    later.join()
    assert loop.steps.nodes == [0, 1]
