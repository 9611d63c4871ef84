"""Drafting ahead: after a complete answer the model goes on with what is likely to come next."""

from __future__ import annotations

import random

import pytest

from draft_service.answers import Drafts
from draft_service.drafter import Drafter
from draft_service.engine.stand_in import RunnerEngine
from draft_service.model_drafter import ModelDrafter
from foredraft.config import FakeEngine
from foredraft.engine.fake import FakeRunner
from foredraft.params import SamplingParams
from foredraft.wire.messages import (
    DraftBudget,
    Limits,
    ModelInfo,
    NodeGroup,
    OpenSequence,
    OpenSequences,
)

INFO = ModelInfo("stand-in", "hash", vocab_size=259, context_length=512, eos_token_ids=(2,))
PROMPT = tuple(random.Random(3).choices(range(3, 259), k=20))


def groups(ahead_survival: float) -> list[NodeGroup]:
    """What a drafter says below one root until it has nothing more to do."""
    model = ModelDrafter(RunnerEngine(FakeRunner(INFO, FakeEngine(0.0, 0.754)), INFO), INFO)
    drafter = Drafter(INFO, Limits(4, 64, 32), model)
    drafter.handle(0, DraftBudget(64, 32, 0.05, ahead_survival))
    opened = OpenSequence(1, 1, PROMPT, SamplingParams(max_tokens=100))
    drafter.handle(0, OpenSequences((opened,)))
    said: list[NodeGroup] = []
    while drafter.busy:
        for answer in drafter.draft():
            assert isinstance(answer.content, Drafts)
            said += answer.content.batches[0].groups
    return said


def test_rests_after_the_answer_if_told_to() -> None:
    said = groups(0.0)
    assert [group.complete for group in said] == [False] * (len(said) - 1) + [True]


def test_goes_on_after_the_answer_and_keeps_it_complete() -> None:
    resting, ahead = groups(0.0), groups(0.005)
    answer = next(n for n, group in enumerate(ahead) if group.complete)
    assert all(group.complete for group in ahead[answer:])
    answered = [token for group in resting for token in group.tokens]
    before = [token for group in ahead[: answer + 1] for token in group.tokens]
    assert before[: len(answered)] == answered  # behind them what is known already
    assert sum(len(group.tokens) for group in ahead[answer + 1 :]) > 5


@pytest.mark.parametrize("told", [DraftBudget(0, 32, 0.05, 0.01), DraftBudget(64, 32, 0.05, 0.0)])
def test_stops_when_told_to_in_the_middle_of_its_work(told: DraftBudget) -> None:
    """By a budget that allows nothing, or nothing ahead."""
    model = ModelDrafter(RunnerEngine(FakeRunner(INFO, FakeEngine(0.0, 0.754)), INFO), INFO)
    drafter = Drafter(INFO, Limits(4, 64, 32), model)
    drafter.handle(0, DraftBudget(64, 32, 0.05, 0.01))
    drafter.handle(0, OpenSequences((OpenSequence(1, 1, PROMPT, SamplingParams(max_tokens=100)),)))
    complete = False
    while not complete:
        answers = drafter.draft()
        complete = any(group.complete for one in answers for group in one.content.batches[0].groups)
    assert drafter.busy  # it drafts ahead
    drafter.handle(0, told)
    drafter.draft()
    assert not drafter.busy


def test_prefills_nothing_more_when_told_to_rest() -> None:
    model = ModelDrafter(RunnerEngine(FakeRunner(INFO, FakeEngine(0.0, 0.754)), INFO), INFO)
    drafter = Drafter(INFO, Limits(4, 64, 32), model)
    drafter.handle(0, DraftBudget(64, 32, 0.05, 0.01))
    opened = OpenSequence(1, 1, PROMPT * 20, SamplingParams(max_tokens=10))
    drafter.handle(0, OpenSequences((opened,)))
    for _ in range(2):
        drafter.draft()
    assert drafter.busy  # most of the prompt has not been read yet
    drafter.handle(0, DraftBudget(0, 32, 0.05, 0.01))
    drafter.draft()
    assert not drafter.busy
