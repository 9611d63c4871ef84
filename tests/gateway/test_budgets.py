"""What the gateway tells its workers to do, and how a drafter that rests is kept informed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.fakes import FakeDraft, FakeVerify, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient
from foredraft.params import Schedule
from foredraft.policy.balance import Way
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.messages import Commit, StepResult, StepTimings, VerifyBudget, WorkerIdentity
from gateway.budgets import _plain_ms

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


@pytest.mark.parametrize("nodes, plain_ms", [(0, 24.0), (6, 21.0), (60, 12.0)])
def test_what_a_step_would_have_taken_without_guesses(nodes: int, plain_ms: float) -> None:
    commit = Commit(1, 1, 5, TOKENS, verified=nodes)
    timings = StepTimings(held_us=6_000, forward_us=20_000, period_us=30_000, row_us=500)
    assert _plain_ms(StepResult(1, (commit,), timings)) == plain_ms


@dataclass
class Decided:
    """A balancer that wants what the test wants."""

    way: Way = Way.PLAIN
    awaited: Way = Way.PLAIN

    plain_rate: float = 0.0
    told_tokens: int = 0

    def stepped(self, **_: object) -> None:
        pass

    def told(self, tokens: int) -> None:
        self.told_tokens = tokens


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

        async def ask(text: str) -> asyncio.Task:
            asking = asyncio.create_task(client.generate(text, max_tokens=200_000))
            opened = len(verify.opened)
            await until(lambda: len(verify.opened) > opened)
            return asking

        await until(lambda: draft.budgets)
        early = await ask("early")
        await until(lambda: draft.live)
        target, (request,) = Target(verify), running.relay._live.values()
        while verify.budgets[-1].max_nodes > 0:
            await target.step()
        await until(lambda: request.journal.position == target.position)
        balancer = running.relay._budgets._balancers[0] = Decided()
        await target.step()
        await until(lambda: draft.budgets[-1].max_nodes_per_sequence == 0)
        await until(lambda: request.journal.position == target.position)
        heard, opened = len(draft.commits), len(draft.opened)
        late = await ask("late")
        for _ in range(64):
            await target.step()
        await until(lambda: request.journal.position == target.position)
        balancer.awaited = Way.FREE
        await target.step()
        await until(lambda: draft.budgets[-1].max_nodes_per_sequence > 0)
        assert len(draft.commits) == heard + 1 and len(draft.opened) == opened + 1
        (followed, *_) = draft.live.values()
        assert len(followed.tokens) == target.position
        assert balancer.told_tokens >= 64 * len(TOKENS)
        assert verify.budgets[-1].max_nodes == 0  # steps are plain until drafters are awake
        balancer.way = Way.FREE
        await target.step()
        await until(lambda: verify.budgets[-1].max_nodes > 0)
        balancer.way = balancer.awaited = Way.PLAIN
        for _ in range(10):
            await target.step()
        await until(lambda: request.journal.position == target.position)
        never = await ask("never drafted for")
        for asking in (early, late, never):
            asking.cancel()
        await until(lambda: len(draft.texts) == 2 + keeps_texts)
        assert len(draft.opened) == opened + 1 + keeps_texts
        untold = target.position - len(draft.texts[request.seq_id])
        assert (untold == 0) == keeps_texts


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
