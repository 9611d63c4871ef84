"""Both loops side by side, as on one host: what goes by the lane, and what is relayed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draft_service.answers import Answer, Drafts
from draft_service.drafter import Drafter
from draft_service.lanes import Lanes
from draft_service.loop import DraftLoop
from foredraft.config import FakeEngine
from foredraft.engine.fake import FakeRunner
from foredraft.params import SamplingParams, Schedule, Speculation
from foredraft.policy.cost import StepCost
from foredraft.tree.node_id import path_id, start_id
from foredraft.wire.codec.verify import Response
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    Commit,
    Commits,
    Limits,
    ModelInfo,
    Nack,
    NodeBatch,
    NodeGroup,
    OpenSequence,
    OpenSequences,
    StepResult,
    VerifyBudget,
)
from verify_service.draft_lane import DraftLane
from verify_service.reservations import Reservations
from verify_service.scheduler import Scheduler
from verify_service.sequence import VerifySequence
from verify_service.step import Outcome
from verify_service.step_loop import Arrival, StepLoop

INFO = ModelInfo("stand-in", "hash", 64, 512, (1,))
LIMITS = Limits(4, 16, 8)
SERIAL = VerifyBudget(16, 500_000, drafting=True, schedule=Schedule.SERIAL)
PROMPT, TOKENS, STREAM = (5, 6, 7), 60, 1


class Host:
    """A drafter, a target, and between them what a gateway does."""

    def __init__(self, path: Path) -> None:
        self.drafter = Drafter(INFO, LIMITS)
        self.drafts = DraftLoop(self.drafter, self.deliver, lambda streams: None)
        self.lanes = Lanes(path, self.drafts.post_lane)
        runner = FakeRunner(INFO, FakeEngine(0.0))
        scheduler = Scheduler(Reservations(runner), INFO, LIMITS)
        self.steps = StepLoop(
            runner, scheduler, StepCost((1, 2), (1.0, 1.0)), self.publish, lane=path
        )
        self.relayed = self.relayed_before = 0
        self.commits: list[Commit] = []
        self.at: dict[int, Callable[[], None]] = {}  # by number of the commit

    def deliver(self, answers: list[Answer]) -> None:
        self.lanes.send(answers)
        for answer in answers:
            if isinstance(answer.content, Nack):  # it has missed something
                self.drafts.post(STREAM, OpenSequences((self.opening(),)))
            if isinstance(answer.content, Drafts):
                for batch in answer.content.batches.values():
                    self.steps.inbox.put(Arrival(STREAM, batch))

    def publish(self, stream: int, response: Response) -> None:
        assert isinstance(response, StepResult)
        (commit,) = response.commits
        self.commits.append(commit)
        if commit.finish is not None:
            self.steps.stop()
            return
        if not response.drafter_told:
            self.relayed += 1
            self.drafts.post(STREAM, Commits((commit,)))
        self.at.pop(len(self.commits), lambda: None)()

    def opening(self) -> OpenSequence:
        known = tuple(token for commit in self.commits for token in commit.tokens)
        return OpenSequence(1, 9, PROMPT, SamplingParams(max_tokens=TOKENS), known)

    def answer(self) -> list[int]:
        opened = self.opening()
        self.drafts.post(STREAM, OpenSequences((opened,)))
        self.steps.inbox.put(Arrival(STREAM, SERIAL))
        self.steps.inbox.put(Arrival(STREAM, OpenSequences((opened,))))
        self.steps.run()
        return [token for commit in self.commits for token in commit.tokens]


@contextmanager
def host(path: Path) -> Iterator[Host]:
    made = Host(path)
    made.drafts.start()
    try:
        yield made
    finally:
        made.lanes.close()
        made.drafts.stop()


def plain() -> list[int]:
    runner, tokens = FakeRunner(INFO, FakeEngine(0.0)), list(PROMPT)
    for _ in range(TOKENS):
        node = path_id(start_id(0, 0), tokens)
        tokens.append(int(runner._logits([node])[0].argmax()))
    return tokens[len(PROMPT) :]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lane"


@pytest.mark.timeout(30)
def test_once_the_drafter_has_answered_the_gateway_relays_nothing(path: Path) -> None:
    with host(path) as both:
        until_found(both)
        assert both.answer() == plain()
        assert both.relayed <= 2
        (sequence,) = both.drafter._sequences.values()
    assert sequence.tokens == [*PROMPT, *plain()][: len(sequence.tokens)]
    assert len(sequence.tokens) >= len(PROMPT) + TOKENS - 17  # all but the last commit


@pytest.mark.timeout(30)
def test_a_sequence_that_was_opened_again_is_relayed_until_it_is_whole(path: Path) -> None:
    """What the lane told meanwhile is missing in it: the gateway has to tell all."""

    def lose() -> None:
        both.relayed_before = both.relayed
        opened = OpenSequence(
            1, 9, PROMPT, SamplingParams(max_tokens=TOKENS), tuple(both.commits[0].tokens)
        )
        both.drafts.post(STREAM, CloseDrafts((CloseSequence(1, 9),)))
        both.drafts.post(STREAM, OpenSequences((opened,)))

    with host(path) as both:
        until_found(both)
        both.at[20] = lose
        assert both.answer() == plain()
        # Nobody answers by the lane any more, and that is noticed.
        assert both.relayed_before < both.relayed < len(both.commits)


@pytest.mark.timeout(30)
def test_a_lane_that_ends_is_replaced_by_the_relay(path: Path) -> None:
    with host(path) as both:
        until_found(both)
        both.at[20] = both.lanes.close
        assert both.answer() == plain()
        (sequence,) = both.drafter._sequences.values()
    assert both.relayed >= len(both.commits) - 30
    assert sequence.lane is None


def until_found(both: Host) -> None:
    """The target's end is there before the first step."""
    both.steps._lane.open()
    both.steps._lane.open = lambda: None  # type: ignore[method-assign]
    found = threading.Event()
    while not both.lanes._lanes or both.steps._lane._lane is None:
        assert not found.wait(0.01)


def outcome(seq_id: int, speculation: Speculation = Speculation.AUTO) -> Outcome:
    opened = OpenSequence(seq_id, 9, PROMPT, SamplingParams(), speculation=speculation)
    sequence = VerifySequence.open(STREAM, opened, LIMITS, INFO)
    return Outcome(sequence, Commit(seq_id, 9, len(PROMPT), (8,)))


class Mute:
    """A lane whose peer takes everything in and says nothing."""

    def send(self, message: bytes) -> None:
        pass


def test_only_answers_show_that_the_drafter_knows() -> None:
    lane = DraftLane(None, lambda batch: None)
    lane._lane = Mute()  # type: ignore[assignment]
    known, unknown, plain = outcome(1), outcome(2), outcome(3, Speculation.OFF)
    group = NodeGroup(1, 9, 0, complete=True)
    lane.tell([known, unknown, plain], SERIAL)
    assert not lane.covers([known, plain])
    assert list(lane.heard(NodeBatch((group, group._replace(incarnation=8))))) == [(STREAM, group)]
    for _ in range(3):
        lane.tell([known, unknown, plain], SERIAL)
        assert lane.covers([known, plain])
        assert not lane.covers([known, unknown]) and not lane.covers([plain])
    lane.tell([known], SERIAL)
    assert not lane.covers([known])  # silent for too long
    list(lane.heard(NodeBatch((group,))))
    lane.tell([known], VerifyBudget(0, 0, drafting=True))  # steps are plain
    assert not lane.covers([known])
    assert list(lane.heard(NodeBatch((group,))))  # drafters are awake before that ends
    lane.tell([unknown], SERIAL)
    assert not list(lane.heard(NodeBatch((group,))))
