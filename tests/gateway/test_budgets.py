"""What the gateway tells its workers to do, and how a drafter that rests is kept informed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from support.fakes import FakeDraft, FakeVerify, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient
from foredraft.params import Schedule
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.messages import Commit, StepResult, StepTimings, VerifyBudget, WorkerIdentity

TOKENS = (10, 11, 12, 13)
PATIENCE_STEPS = 20_000


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"), 259)


@pytest.fixture
def known(model) -> WorkerIdentity:
    made = tokenizer_identity(model)
    return identity(made.hash, made.vocab_size, context=1 << 20)


class Target:
    """Steps of one sequence in which guesses are of no use, as ``period_us`` tells."""

    def __init__(self, verify: FakeVerify) -> None:
        self.verify = verify
        self.position = len(verify.opened[0].prompt)
        self.steps = 0

    async def step(self) -> None:
        opened = self.verify.opened[0]
        commit = Commit(opened.seq_id, opened.incarnation, self.position, TOKENS)
        plain = self.verify.budgets[-1].max_nodes == 0
        period_us = 10_000 if plain else 20_000
        timings = StepTimings(forward_us=1_000, period_us=period_us, row_us=500)
        self.verify.say(StepResult(self.steps, (commit,), timings, free_blocks=1))
        self.position += len(TOKENS)
        self.steps += 1
        if self.steps % 10 == 0:
            await asyncio.sleep(0.005)
        assert self.steps < PATIENCE_STEPS


@pytest.mark.asyncio
@pytest.mark.parametrize("keeps_texts", [False, True], ids=["forgets", "keeps_texts"])
async def test_a_drafter_hears_nothing_while_it_rests_and_all_when_it_wakes(
    model, known, tmp_path, keeps_texts
) -> None:
    verify, draft = FakeVerify(known), FakeDraft(replace(known, keeps_texts=keeps_texts))
    async with (
        worker(verify, f"unix:{tmp_path}/v") as verify_at,
        worker(draft, f"unix:{tmp_path}/d") as draft_at,
        gateway(model, verify_at, draft_at) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: draft.budgets)
        asking = asyncio.create_task(client.generate("hello", max_tokens=200_000))
        await until(lambda: verify.live and draft.live)
        target = Target(verify)
        rested = lambda: draft.budgets[-1].max_nodes_per_sequence == 0  # noqa: E731
        while not rested():
            await target.step()
        assert verify.budgets[-1].max_nodes == 0
        late = asyncio.create_task(client.generate("late", max_tokens=200_000))
        await until(lambda: len(verify.opened) == 2)
        steps, told = target.steps, len(draft.budgets)
        while rested():
            await target.step()
        await until(lambda: len(draft.opened) == 2)
        assert len(draft.budgets) == told + 1 and verify.budgets[-1].max_nodes == 0
        (missed,) = [commit for commit in draft.commits if len(commit.tokens) > len(TOKENS)]
        assert len(missed.tokens) > len(TOKENS) * (target.steps - steps) / 2 > 200
        position = target.position
        while verify.budgets[-1].max_nodes == 0:  # drafters get time to catch up
            await target.step()
        (followed, *_) = draft.live.values()
        await until(lambda: len(followed.tokens) > position)
        while not rested():
            await target.step()
        for _ in range(10):
            await target.step()
        (request, _) = running.relay._live.values()
        await until(lambda: request.journal.position == target.position)
        asking.cancel()
        late.cancel()
        await until(lambda: len(draft.texts) == 2)
        untold = target.position - len(draft.texts[request.seq_id])
        assert untold == 0 if keeps_texts else untold > 0
        asking = asyncio.create_task(client.generate("later", max_tokens=200_000))
        await until(lambda: len(verify.opened) == 3)
        asking.cancel()
        await until(lambda: len(verify.closed) == 3)
        await until(lambda: len(draft.texts) == 3 or not keeps_texts)
        assert len(draft.opened) == 2 + keeps_texts
    schedules = {budget.schedule for budget in verify.budgets}
    assert schedules == {Schedule.FREE, Schedule.SERIAL} or Schedule.HELD in schedules


@pytest.mark.asyncio
@pytest.mark.parametrize("schedule", [Schedule.HELD, Schedule.FREE])
async def test_drafters_are_told_what_time_is_worth_where_steps_wait(model, known, schedule):
    verify, draft = FakeVerify(known), FakeDraft(known)
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, verify_at, draft_at, schedule=schedule) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: draft.budgets)
        assert sum(draft.budgets[-1].tokens_per_ms) == 0.0
        asking = asyncio.create_task(client.generate("hello", max_tokens=200_000))
        await until(lambda: verify.live and draft.live)
        target = Target(verify)
        for _ in range(100):
            await target.step()
        await until(lambda: sum(len(commit.tokens) for commit in draft.commits) >= 400)
        asking.cancel()
    told = [budget.tokens_per_ms[0] for budget in draft.budgets if any(budget.tokens_per_ms)]
    if schedule is Schedule.FREE:
        assert told == []
    else:  # 4 tokens in 20 ms, and a row takes 0.5 ms
        assert told == [pytest.approx(0.2)]
        assert draft.budgets[-1].tokens_per_row == (pytest.approx(0.1),)


@pytest.mark.asyncio
@pytest.mark.parametrize("schedule", [Schedule.SERIAL, Schedule.HELD, Schedule.FREE])
async def test_a_fixed_schedule_is_told_once_and_stays(model, known, schedule) -> None:
    verify, draft = FakeVerify(known), FakeDraft(known)
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, verify_at, draft_at, schedule=schedule, max_nodes=7),
    ):
        await until(lambda: verify.budgets and verify.budgets[-1].drafting and draft.budgets)
        longest = 2_000_000 if schedule is Schedule.SERIAL else 20_000
        assert verify.budgets[-1] == VerifyBudget(7, longest, drafting=True, schedule=schedule)
        assert (draft.budgets[-1].ahead_survival == 0.0) == (schedule is Schedule.SERIAL)
