"""A worker that says that it does not serve is left for one that does, if there is one."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from support.fakes import FakeDraft, FakeVerify, Round, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient
from foredraft.params import FinishReason
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.channel import private_channel
from foredraft.wire.health import Health
from foredraft.wire.messages import Commit, StepResult
from gateway import link
from gateway.health_watch import HealthWatch

STOP = FinishReason.STOP


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"), 259)


@pytest.fixture
def known(model):
    made = tokenizer_identity(model)
    return identity(made.hash, made.vocab_size)


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(link, "PATIENCE_SECONDS", 0.05)


async def sound() -> Health:
    health = Health("fake")
    await health.set_serving(True)
    return health


@pytest.mark.asyncio
async def test_sequences_of_a_target_that_hangs_move_to_another_one(model, known, hurried):
    first, second, health = FakeVerify(known), FakeVerify(known), await sound()
    async with (
        worker(first, "127.0.0.1:0", health) as address,
        worker(second, "127.0.0.1:0") as other,
        gateway(model, address, others=[other]) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: first.budgets and second.budgets)
        streams = [*first.outboxes]
        task = asyncio.create_task(client.generate("hello"))
        await until(lambda: first.opened)
        seq_id = first.opened[0].seq_id
        first.commit(seq_id, Round((10,)))
        (request,) = running.relay._live.values()
        await until(lambda: request.journal.committed)
        await health.set_serving(False)
        await until(lambda: second.opened and first.closed)
        assert second.opened[0].committed == (10,) and running.relay.ready
        assert first.closed[0].incarnation == first.opened[0].incarnation
        first.commit(seq_id, Round((99,)))  # the pass that was late has ended
        second.commit(seq_id, Round((11,), finish=STOP))
        assert (await task).token_ids == [10, 11]
        new = asyncio.create_task(client.generate("hello"))
        await until(lambda: len(second.opened) == 2)
        second.commit(second.opened[1].seq_id, Round((12,), finish=STOP))
        assert (await new).token_ids == [12]

        await health.set_serving(True)
        await until(lambda: running.relay._verify._links[0].well)
        again = asyncio.create_task(client.generate("hello"))
        await until(lambda: len(first.opened) == 2)
        first.commit(first.opened[1].seq_id, Round((13,), finish=STOP))
        assert (await again).token_ids == [13]
        assert first.outboxes == streams


@pytest.mark.asyncio
async def test_the_only_target_is_waited_for_though_it_does_not_serve(model, known, hurried):
    verify, health = FakeVerify(known), await sound()
    async with (
        worker(verify, "127.0.0.1:0", health) as address,
        gateway(model, address) as running,
        AsyncClient(running.address) as client,
    ):
        tasks = [asyncio.create_task(client.generate("hello"))]
        await until(lambda: verify.opened)
        for turn in range(4):
            await health.set_serving(False)
            await until(lambda: running.relay._verify._links[0].ill)
            assert running.relay.ready and not running.relay._verify.count_well()
            if turn == 0:
                tasks.append(asyncio.create_task(client.generate("hello")))
                await until(lambda: len(verify.opened) == 2)
            await health.set_serving(True)
            await until(lambda: running.relay._verify._links[0].well)
        for opened in verify.opened:
            verify.commit(opened.seq_id, Round((10,), finish=STOP))
        assert [(await task).token_ids for task in tasks] == [[10]] * 2
        assert len(verify.opened) == 2 and len(verify.budgets) == 1


@pytest.mark.asyncio
async def test_a_sequence_leaves_a_target_that_is_ill_only_once(model, known, hurried, tmp_path):
    first, second = FakeVerify(known), FakeVerify(known)
    ill, other_ill = await sound(), await sound()
    other = f"unix:{tmp_path}/second"
    async with (
        worker(first, "127.0.0.1:0", ill) as address,
        gateway(model, address, others=[other]) as running,
        AsyncClient(running.address) as client,
    ):
        links = running.relay._verify._links
        task = asyncio.create_task(client.generate("hello"))
        await until(lambda: first.opened)
        await ill.set_serving(False)
        await until(lambda: links[0].ill)
        assert not second.opened
        async with worker(second, other, other_ill):
            await until(lambda: second.opened)
            await ill.set_serving(True)
            await until(lambda: links[0].well)
            await other_ill.set_serving(False)
            await until(lambda: links[1].ill)
            second.commit(second.opened[0].seq_id, Round((10,)))
            (request,) = running.relay._live.values()
            await until(lambda: request.journal.committed)
            assert len(first.opened) == 1
        await until(lambda: len(first.opened) == 2)  # now it is lost: that is another matter
        assert first.opened[1].committed == (10,) and not request.settled
        first.commit(first.opened[1].seq_id, Round((11,), finish=STOP))
        assert (await task).token_ids == [10, 11]


@pytest.mark.asyncio
async def test_a_target_that_is_ill_for_too_long_is_lost_until_it_serves_again(
    model, known, hurried, monkeypatch
):
    monkeypatch.setattr(link, "LONGEST_ILL_SECONDS", 0.05)
    verify, health = FakeVerify(known), await sound()
    async with (
        worker(verify, "127.0.0.1:0", health) as address,
        gateway(model, address) as running,
        AsyncClient(running.address) as client,
    ):
        task = asyncio.create_task(client.generate("hello"))
        await until(lambda: verify.opened)
        old = verify.opened[0]
        verify.commit(old.seq_id, Round((10,)))
        (request,) = running.relay._live.values()
        await until(lambda: request.journal.committed)
        await health.set_serving(False)
        await until(lambda: len(running.relay._stranded) == 1)
        assert not running.relay.ready
        await health.set_serving(True)
        await until(lambda: len(verify.opened) == 2)
        assert verify.opened[1].committed == (10,)
        # The pass that hung ends: what it decided has been decided anew.
        late = Commit(old.seq_id, old.incarnation, len(old.prompt) + 1, (11,))
        verify.say(StepResult(1, (late,)))
        verify.commit(old.seq_id, Round((11,)))
        verify.commit(old.seq_id, Round((12,), finish=STOP))
        assert (await task).token_ids == [10, 11, 12]


@pytest.mark.asyncio
async def test_a_long_pass_costs_nothing(model, known):
    verify, health = FakeVerify(known), await sound()
    async with (
        worker(verify, "127.0.0.1:0", health) as address,
        gateway(model, address) as running,
        AsyncClient(running.address) as client,
    ):
        task = asyncio.create_task(client.generate("hello"))
        await until(lambda: verify.opened)
        for serving in (False, True, False, True):
            await health.set_serving(serving)
            await asyncio.sleep(0.02)
        verify.commit(verify.opened[0].seq_id, Round((10,), finish=STOP))
        assert (await task).token_ids == [10]
        assert len(verify.opened) == len(verify.budgets) == 1


@pytest.mark.asyncio
async def test_a_target_is_used_once_it_serves(model, known, caplog):
    caplog.set_level("INFO", link.logger.name)
    verify, health = FakeVerify(known, [Round((10,), finish=STOP)]), Health("fake")
    async with (
        worker(verify, "127.0.0.1:0", health) as address,
        gateway(model, address, ready=False) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: "waiting until" in caplog.text)
        assert not running.relay.ready and not verify.budgets
        await health.set_serving(True)
        await until(lambda: running.relay.ready)
        assert (await client.generate("hello")).token_ids == [10]


@pytest.mark.asyncio
async def test_without_a_drafter_that_serves_decoding_is_plain(model, known, hurried):
    verify, draft, health = FakeVerify(known), FakeDraft(known), await sound()
    async with (
        worker(verify, "127.0.0.1:0") as address,
        worker(draft, "127.0.0.1:0", health) as draft_at,
        gateway(model, address, draft_at) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: verify.budgets and verify.budgets[-1].drafting)
        task = asyncio.create_task(client.generate("hello"))
        await until(lambda: draft.live and verify.opened)
        seq_id = verify.opened[0].seq_id
        await health.set_serving(False)
        await until(lambda: not verify.budgets[-1].drafting)
        verify.commit(seq_id, Round((10,)))
        (request,) = running.relay._live.values()
        await until(lambda: request.journal.committed)
        assert not draft.commits
        await health.set_serving(True)
        await until(lambda: verify.budgets[-1].drafting and len(draft.opened) == 2)
        assert draft.opened[1].committed == (10,)
        verify.commit(seq_id, Round((11,), finish=STOP))
        assert (await task).token_ids == [10, 11]
    assert len(verify.opened) == 1


class Told:
    """A watch's call that says what the test puts in."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue = asyncio.Queue()

    async def read(self) -> object:
        return await self.answers.get()

    def cancel(self) -> None:
        pass


@pytest.mark.asyncio
@pytest.mark.parametrize("turns", range(8))
async def test_a_watch_ends_when_it_is_told_to_whatever_comes_meanwhile(turns):
    async with private_channel("127.0.0.1:1") as channel, HealthWatch(channel) as health:
        health._call.cancel()
        health._call = told = Told()
        watching = asyncio.create_task(health.until_ill(60.0))
        told.answers.put_nowait(HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING))
        await until(lambda: told.answers.empty() and told.answers._getters)
        told.answers.put_nowait(grpc.aio.EOF)
        for _ in range(turns):
            await asyncio.sleep(0)
        watching.cancel()
        await asyncio.wait((watching,), timeout=5.0)
        assert watching.cancelled()
