"""Workers are lost and come back, or others take their place: the client sees one answer."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.fakes import FakeDraft, FakeVerify, Round, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient, Unavailable
from foredraft.params import FinishReason
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.codec.nodes import encode_nodes
from foredraft.wire.messages import Commit, NodeBatch, NodeBlock, NodeBlocks, NodeGroup, StepResult

STOP = FinishReason.STOP


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"), 259)


@pytest.fixture
def known(model):
    made = tokenizer_identity(model)
    return identity(made.hash, made.vocab_size)


async def start(client, *verifies):
    """A request that one of the targets has taken in; which one, its id and its task."""
    counts = [len(verify.opened) for verify in verifies]
    task = asyncio.create_task(client.generate("hello"))

    def taken():
        return [v for v, count in zip(verifies, counts, strict=True) if len(v.opened) > count]

    await until(taken)
    (verify,) = taken()
    return verify, verify.opened[-1].seq_id, task


@pytest.mark.asyncio
async def test_a_request_outlives_its_target(model, known, tmp_path):
    first, second, draft = FakeVerify(known), FakeVerify(known), FakeDraft(known)
    address = f"unix:{tmp_path}/verify"
    async with (
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, address, draft_at, ready=False) as running,
        AsyncClient(running.address) as client,
    ):
        async with worker(first, address):
            await until(lambda: draft.budgets)
            _, seq_id, task = await start(client, first)
            first.commit(seq_id, Round((10, 11)))
            await until(lambda: draft.commits)
        await until(lambda: not running.relay.ready)
        assert not task.done()
        async with worker(second, address):
            await until(lambda: second.opened and len(draft.opened) == 2)
            old, new = first.opened[0], second.opened[0]
            late = Commit(seq_id, old.incarnation, 7, (99,))
            second.say(StepResult(1, (late,)))
            second.commit(seq_id, Round((12,)))
            second.commit(seq_id, Round((13,), finish=STOP))
            assert (await task).token_ids == [10, 11, 12, 13]
            await until(lambda: draft.closed)
    assert new.committed == (10, 11) and new.prompt == old.prompt and new.params == old.params
    assert new.incarnation != old.incarnation
    assert draft.opened[1].incarnation == new.incarnation and not draft.live
    assert draft.opened[1].committed == (10, 11)


@pytest.mark.asyncio
async def test_a_request_whose_target_does_not_come_back_is_told_so(model, known, tmp_path):
    verify = FakeVerify(known)
    address = f"unix:{tmp_path}/verify"
    async with (
        gateway(model, address, ready=False, resume_seconds=0.3) as running,
        AsyncClient(running.address) as client,
    ):
        async with worker(verify, address):
            await until(lambda: running.relay.ready)
            _, _, task = await start(client, verify)
            _, _, dropped = await start(client, verify)
        await until(lambda: len(running.relay._stranded) == 2)
        dropped.cancel()
        await until(lambda: len(running.relay._stranded) == 1)
        with pytest.raises(Unavailable, match="lost") as lost:
            await task
    assert lost.value.retry_after == 1.0
    assert not running.relay._live and not running.relay._stranded


@pytest.mark.asyncio
async def test_a_request_that_ends_each_target_is_given_up(model, known, tmp_path):
    address = f"unix:{tmp_path}/verify"
    targets = [FakeVerify(known) for _ in range(4)]
    async with (
        gateway(model, address, ready=False) as running,
        AsyncClient(running.address) as client,
    ):
        for number, verify in enumerate(targets):
            async with worker(verify, address):
                await until(lambda verify=verify: verify.budgets)
                if number == 0:
                    _, seq_id, task = await start(client, verify)
                    verify.commit(seq_id, Round((10,)))
                    (request,) = running.relay._live.values()
                    await until(lambda request=request: request.journal.committed)
                await until(lambda verify=verify: verify.opened)
            await until(lambda: not running.relay.ready)
        verify = FakeVerify(known)
        async with worker(verify, address):
            with pytest.raises(Unavailable, match="lost"):
                await task
        assert not verify.opened and not running.relay._live


@pytest.mark.asyncio
async def test_sequences_of_a_lost_target_move_to_another_one(model, known, tmp_path):
    first, second, draft = FakeVerify(known), FakeVerify(known), FakeDraft(known)
    async with contextlib.AsyncExitStack() as both:
        second_at = await both.enter_async_context(worker(second, "127.0.0.1:0"))
        draft_at = await both.enter_async_context(worker(draft, "127.0.0.1:0"))
        address = f"unix:{tmp_path}/verify"
        async with worker(first, address):
            running = await both.enter_async_context(
                gateway(model, address, draft_at, others=[second_at])
            )
            client = await both.enter_async_context(AsyncClient(running.address))
            await until(lambda: first.budgets and second.budgets and draft.budgets)
            started = [await start(client, first, second) for _ in range(4)]
            assert len(first.opened) == len(second.opened) == 2
            await until(lambda: len(draft.live) == 4)
            homes = {opened.seq_id: opened.verify_worker for opened in draft.opened}
            assert homes == {o.seq_id: 0 for o in first.opened} | {
                o.seq_id: 1 for o in second.opened
            }
            for verify, seq_id, _ in started:
                verify.commit(seq_id, Round((10,)))
            await until(lambda: len(draft.commits) == 4)
        await until(lambda: len(second.opened) == len(second.live) == 4)
        await until(lambda: len(draft.opened) == 6)
        assert all(opened.verify_worker == 1 for opened in draft.opened[4:])
        for _, seq_id, _ in started:
            second.commit(seq_id, Round((11,), finish=STOP))
        for _, _, task in started:
            assert (await task).token_ids == [10, 11]


@pytest.mark.asyncio
async def test_guesses_go_to_the_target_they_were_made_for(model, known):
    first, second, draft = FakeVerify(known), FakeVerify(known), FakeDraft(known)
    batches = [NodeBatch((NodeGroup(seq_id, 1, 7, True),)) for seq_id in (5, 6)]
    async with (
        worker(first, "127.0.0.1:0") as first_at,
        worker(second, "127.0.0.1:0") as second_at,
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, first_at, draft_at, others=[second_at]),
    ):
        await until(lambda: first.budgets and second.budgets and draft.budgets)
        blocks = [NodeBlock(w, encode_nodes(batch)) for w, batch in enumerate(batches)]
        draft.say(NodeBlocks((*blocks, NodeBlock(9, blocks[0].nodes))))
        await until(lambda: first.nodes and second.nodes)
    assert (first.nodes, second.nodes) == ([batches[0]], [batches[1]])


@pytest.mark.asyncio
async def test_another_model_is_not_used_beside_the_served_one(model, known, caplog):
    made = tokenizer_identity(model)
    other = FakeVerify(identity(made.hash, made.vocab_size, context=128))
    verify = FakeVerify(known)
    async with (
        worker(verify, "127.0.0.1:0") as address,
        worker(other, "127.0.0.1:0") as other_at,
        gateway(model, address, others=[other_at]) as running,
    ):
        await until(lambda: "not the model that the other verify workers serve" in caplog.text)
        await until(lambda: verify.budgets or other.budgets)
        assert not (verify.budgets and other.budgets) and running.relay.ready


@pytest.mark.asyncio
async def test_sequences_of_a_lost_drafter_move_to_another_one(model, known, tmp_path):
    verify, first, second = FakeVerify(known), FakeDraft(known), FakeDraft(known)
    first_at = f"unix:{tmp_path}/draft"
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        worker(second, "127.0.0.1:0") as second_at,
        gateway(model, verify_at, first_at, second_at) as running,
        AsyncClient(running.address) as client,
    ):
        async with worker(first, first_at):
            await until(lambda: first.budgets and second.budgets)
            started = [await start(client, verify) for _ in range(4)]
            await until(lambda: len(first.live) == len(second.live) == 2)
            for _, seq_id, _ in started:
                verify.commit(seq_id, Round((10,)))
            await until(lambda: len(first.commits) == len(second.commits) == 2)
        await until(lambda: len(second.live) == 4)
        assert [len(opened.committed) for opened in second.opened] == [0, 0, 1, 1]
        assert verify.budgets[-1].drafting
        for _, seq_id, task in started:
            verify.commit(seq_id, Round((11,), finish=STOP))
            assert (await task).token_ids == [10, 11]
        await until(lambda: not second.live)
