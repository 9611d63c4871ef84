"""Drafters that hear of commits by a lane: the gateway keeps to itself what they know."""

from __future__ import annotations

import asyncio

import pytest
from support.fakes import FakeDraft, FakeVerify, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient
from foredraft.params import FinishReason
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.messages import Commit, Nack, SequenceError, StepResult


@pytest.mark.asyncio
async def test_only_what_a_drafter_does_not_know_is_told(tmp_path) -> None:
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    made = tokenizer_identity(model)
    known = identity(made.hash, made.vocab_size)
    verify, draft = FakeVerify(known), FakeDraft(known)
    async with (
        worker(verify, f"unix:{tmp_path}/v") as verify_at,
        worker(draft, f"unix:{tmp_path}/d") as draft_at,
        gateway(model, verify_at, draft_at) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: draft.budgets)
        asking = asyncio.create_task(client.generate("hello", max_tokens=50))
        await until(lambda: verify.live and draft.live)
        (opened,) = verify.opened
        position = len(opened.prompt)

        async def step(token: int, *, told: bool, finish: FinishReason | None = None) -> None:
            nonlocal position
            if told:
                draft.live[opened.seq_id].tokens.append(token)
            commit = Commit(opened.seq_id, opened.incarnation, position, (token,), finish=finish)
            verify.say(StepResult(token, (commit,), free_blocks=1, drafter_told=told))
            position += 1
            if finish is None:
                (request,) = running.relay._live.values()
                await until(lambda: request.journal.position == position)

        for token in (10, 11, 12):
            await step(token, told=True)
        await step(13, told=False)
        await until(lambda: draft.commits)
        assert [commit.tokens for commit in draft.commits] == [(13,)]
        # One that has lost track gets the whole text, whatever it was told.
        draft.say(Nack((SequenceError(opened.seq_id, opened.incarnation, 9, "gap"),)))
        await until(lambda: not running.relay._draft._links[0]._followed)
        await step(14, told=True)
        await until(lambda: len(draft.opened) == 2)
        assert draft.opened[1].committed == (10, 11, 12, 13, 14)
        await step(15, told=True)
        await step(16, told=False, finish=FinishReason.LENGTH)
        assert (await asking).token_ids == list(range(10, 17))
        await until(lambda: opened.seq_id in draft.texts)
    assert draft.texts[opened.seq_id] == [*opened.prompt, *range(10, 17)]
    assert len(draft.commits) == 1
