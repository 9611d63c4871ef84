"""The gateway between real gRPC workers that do what the test says."""

from __future__ import annotations

import asyncio

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.fakes import (
    FakeDraft,
    FakeVerify,
    Round,
    gateway,
    identity,
    until,
    worker,
)
from support.tiny_models import make_tiny_tokenizer
from tokenizers import Tokenizer

from foredraft import AsyncClient, Internal, InvalidRequest, Overloaded, Unavailable, Unsupported
from foredraft.errors import translated
from foredraft.params import FinishReason, Speculation
from foredraft.request import GenerateOptions, GenerateRequest, TextPrompt
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire import channel
from foredraft.wire.codec import generate as codec
from foredraft.wire.codec.nodes import encode_nodes
from foredraft.wire.messages import (
    Nack,
    NodeBatch,
    NodeGroup,
    SequenceError,
    SequenceErrors,
    Source,
)
from foredraft.wire.peers import generate_stub

STOP = FinishReason.STOP


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"), 259)


@pytest.fixture
def known(model):
    made = tokenizer_identity(model)
    return identity(made.hash, made.vocab_size)


def byte_ids(model, text):
    return tuple(Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids)


async def start(client, verify, **options):
    """A streaming request that the target has taken in; its task gives the result."""
    count = len(verify.opened)

    async def run():
        stream = client.stream("hello", **options)
        async for _ in stream:
            pass
        return stream.result

    task = asyncio.create_task(run())
    await until(lambda: len(verify.opened) > count)
    return verify.opened[-1].seq_id, task


@pytest.mark.asyncio
async def test_one_answer(model, known):
    verify = FakeVerify(known, [Round((10, 11), 1, True, 3), Round((12,), 0, False, 3, STOP)])
    async with (
        worker(verify, "127.0.0.1:0") as address,
        gateway(model, address) as running,
        AsyncClient(running.address) as client,
    ):
        result = await client.generate("hello", seed=2**64 - 1)
        (served,) = await client.models()
    assert result.token_ids == [10, 11, 12] and result.finish_reason == "stop"
    assert result.seed == 2**64 - 1 and result.model == served.model_id == "tiny"
    assert (result.stats.steps, result.stats.hit_steps, result.stats.verified_nodes) == (2, 1, 6)
    assert result.stats.tokens_per_step == 1.5 and result.stats.prompt_tokens == 5
    assert result.trace_id in verify.opened[0].traceparent
    assert not verify.closed and verify.budgets[0].drafting is False


@pytest.mark.asyncio
async def test_stop_string_closes_the_sequence_at_both_workers(model, known, tmp_path):
    verify, draft = FakeVerify(known), FakeDraft(known)
    async with (
        worker(verify, f"unix:{tmp_path}/v") as verify_at,
        worker(draft, f"unix:{tmp_path}/d") as draft_at,
        gateway(model, verify_at, draft_at) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: draft.budgets)
        seq_id, task = await start(client, verify, stop=["END"])
        text = [byte_ids(model, part) for part in ("abc E", "ND xyz")]
        verify.commit(seq_id, Round(text[0]))
        verify.commit(seq_id, Round(text[1]))
        result = await task
        await until(lambda: verify.closed and draft.closed)
    assert (result.text, result.finish_reason) == ("abc ", "stop")
    assert result.token_ids == [*text[0], *text[1][:2]]
    assert not verify.live and not draft.live


@pytest.mark.asyncio
async def test_the_client_leaving_closes_the_sequence_at_both_workers(model, known):
    verify, draft = FakeVerify(known), FakeDraft(known)
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, verify_at, draft_at) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: draft.budgets)
        stream = client.stream("hello", seed=9)
        reading = asyncio.ensure_future(anext(aiter(stream)))
        await until(lambda: verify.live and draft.live)
        verify.commit(verify.opened[0].seq_id, Round((10, 11)))
        await reading
        stream.cancel()
        await until(lambda: not verify.live and not draft.live)
        assert stream.result.finish_reason == "cancelled" and stream.result.seed == 9
        assert stream.result.token_ids == [10, 11]
        assert stream.result.trace_id in verify.opened[0].traceparent

        waiting = asyncio.create_task(client.generate("hello"))
        await until(lambda: verify.live and draft.live)
        waiting.cancel()
        await until(lambda: not verify.live and not draft.live)

        with pytest.raises(Exception, match="Deadline"):
            await client.generate("hello", timeout=0.2)
        await until(lambda: not verify.live and not draft.live)
    assert len(verify.closed) == len(draft.closed) == 3


@pytest.mark.asyncio
async def test_guesses_are_relayed_as_they_are(model, known):
    verify, draft = FakeVerify(known), FakeDraft(known)
    group = NodeGroup(1, 7, 70, False, (5,), (70,), (0.5,), (Source.MODEL,))
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, verify_at, draft_at),
    ):
        await until(lambda: draft.budgets)
        draft.propose(encode_nodes(NodeBatch((group,))))
        await until(lambda: verify.nodes)
    assert verify.nodes == [NodeBatch((group,))]


@pytest.mark.asyncio
async def test_commits_and_orphans_go_to_the_drafter(model, known):
    verify, draft = FakeVerify(known), FakeDraft(known)
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, verify_at, draft_at) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: draft.budgets)
        seq_id, task = await start(client, verify)
        verify.commit(seq_id, Round((10, 11), accepted=1, orphans=(99,)))
        await until(lambda: draft.commits)
        verify.commit(seq_id, Round((12,), finish=STOP))
        await task
        await until(lambda: draft.closed)
    (commit,) = draft.commits  # the last one comes with the close
    assert commit.tokens == (10, 11) and commit.orphans == (99,) and commit.accepted == 1
    assert draft.texts[seq_id] == [*draft.opened[0].prompt, 10, 11, 12]


@pytest.mark.asyncio
async def test_late_and_doubled_commits_change_nothing(model, known):
    verify = FakeVerify(known)
    async with (
        worker(verify, "127.0.0.1:0") as address,
        gateway(model, address) as running,
        AsyncClient(running.address) as client,
    ):
        seq_id, task = await start(client, verify)
        verify.commit(seq_id, Round((10, 11)), position=5)
        verify.commit(seq_id, Round((10, 11)), position=5)
        verify.commit(seq_id, Round((12,), finish=STOP), position=7)
        assert (await task).token_ids == [10, 11, 12]

        seq_id, task = await start(client, verify)
        verify.commit(seq_id, Round((10,)), position=6)
        with pytest.raises(Unavailable, match="step"):
            await task
        await until(lambda: verify.closed)


@pytest.mark.asyncio
async def test_drafter_lost_and_found(model, known, tmp_path):
    """Plain decoding meanwhile; then every sequence is opened again with its journal."""
    verify, first, second = FakeVerify(known), FakeDraft(known), FakeDraft(known)
    draft_at = f"unix:{tmp_path}/draft"
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        gateway(model, verify_at, draft_at) as running,
        AsyncClient(running.address) as client,
    ):
        async with worker(first, draft_at):
            await until(lambda: first.budgets)
            await until(lambda: verify.budgets[-1].drafting)
            seq_id, task = await start(client, verify)
            off_id, off = await start(client, verify, speculation="off")
            verify.commit(seq_id, Round((10, 11)))
            await until(lambda: first.commits)
            assert off_id not in first.live
        await until(lambda: not verify.budgets[-1].drafting)
        verify.commit(seq_id, Round((12,)))
        async with worker(second, draft_at):
            await until(lambda: verify.budgets[-1].drafting)
            await until(lambda: second.opened)
            verify.commit(seq_id, Round((13,)))
            await until(lambda: second.commits)
            verify.commit(seq_id, Round((14,), finish=STOP))
            verify.commit(off_id, Round((15,), finish=STOP))
            assert (await task).token_ids == [10, 11, 12, 13, 14]
            assert (await off).token_ids == [15]
    (reopened,) = second.opened
    assert reopened.seq_id == seq_id and reopened.committed == (10, 11, 12)
    assert second.commits[0].position == len(reopened.prompt) + 3


@pytest.mark.asyncio
async def test_a_nack_opens_the_sequence_again(model, known):
    verify, draft = FakeVerify(known), FakeDraft(known)
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, verify_at, draft_at) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: draft.budgets)
        seq_id, task = await start(client, verify)
        for count in range(1, 6):
            draft.say(Nack((SequenceError(seq_id, verify.opened[0].incarnation, 9, "gap"),)))
            await until(lambda: seq_id not in running.relay._draft._links[0]._followed)
            verify.commit(seq_id, Round((10,)))
            await until(lambda n=count: running.relay._live[seq_id].journal.position == 5 + n)
        verify.commit(seq_id, Round((), finish=STOP))
        await task
    # Three times; a sequence that the drafter cannot follow is then decoded plainly.
    assert [len(opened.committed) for opened in draft.opened] == [0, 1, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("field", ["tokenizer_hash", "vocab_size"])
async def test_a_drafter_that_does_not_match_is_not_used(model, known, caplog, field):
    made = tokenizer_identity(model)
    other = (
        identity("another", made.vocab_size)
        if field == "tokenizer_hash"
        else identity(made.hash, made.vocab_size - 1)
    )
    verify, draft = FakeVerify(known, [Round((10,), finish=STOP)]), FakeDraft(other)
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, verify_at, draft_at) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: field in caplog.text)
        assert (await client.generate("hello")).token_ids == [10]
        await asyncio.sleep(0.5)
    assert not draft.opened and not verify.budgets[-1].drafting
    assert caplog.text.count("drafting is off") == 1


@pytest.mark.asyncio
async def test_a_drafter_that_does_not_read_is_cut_off(model, known):
    verify, draft = FakeVerify(known), FakeDraft(known)
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, verify_at, draft_at) as running,
        AsyncClient(running.address) as client,
    ):
        await until(lambda: draft.budgets)
        seq_id, task = await start(client, verify)
        await until(lambda: draft.opened)
        link = running.relay._draft._links[0]
        for _ in range(link.outbox_size + 1):
            link.send(draft.budgets[0])
        await until(lambda: len(draft.opened) == 2)
        verify.commit(seq_id, Round((10,), finish=STOP))
        assert (await task).token_ids == [10]


@pytest.mark.asyncio
async def test_target_lost_and_found(model, known, tmp_path):
    first, second = FakeVerify(known), FakeVerify(known, [Round((10,), finish=STOP)])
    address = f"unix:{tmp_path}/verify"
    async with (
        gateway(model, address, ready=False, resume_seconds=0) as running,
        AsyncClient(running.address) as client,
        channel.public_channel(running.address) as opened,
    ):
        health = health_pb2_grpc.HealthStub(opened).Watch(health_pb2.HealthCheckRequest())
        statuses = []

        async def watch():
            async for response in health:
                statuses.append(response.status)

        watching = asyncio.create_task(watch())
        with pytest.raises(Unavailable) as refused:
            await client.generate("hello")
        assert refused.value.retry_after == 1.0
        async with worker(first, address):
            await until(lambda: statuses == [2, 1])
            _, task = await start(client, first)
        with pytest.raises(Unavailable, match="lost") as lost:
            await task
        assert lost.value.retry_after == 1.0 and lost.value.trace_id
        await until(lambda: statuses == [2, 1, 2])
        async with worker(second, address):
            await until(lambda: statuses == [2, 1, 2, 1])
            assert (await client.generate("hello")).token_ids == [10]
        watching.cancel()


@pytest.mark.asyncio
async def test_a_target_with_another_tokenizer_is_refused(model, caplog):
    verify = FakeVerify(identity("another", 259))
    async with worker(verify, "127.0.0.1:0") as address, gateway(model, address, ready=False):
        await until(lambda: "tokenizer" in caplog.text)
    assert not verify.budgets


@pytest.mark.asyncio
async def test_an_error_of_one_sequence_is_its_own(model, known):
    verify = FakeVerify(known)
    async with (
        worker(verify, "127.0.0.1:0") as address,
        gateway(model, address) as running,
        AsyncClient(running.address) as client,
    ):
        bad_id, bad = await start(client, verify)
        good_id, good = await start(client, verify)
        incarnation = verify.opened[0].incarnation
        verify.say(SequenceErrors((SequenceError(bad_id, incarnation, 13, "row is broken"),)))
        with pytest.raises(Internal, match="row is broken"):
            await bad
        verify.commit(good_id, Round((10,), finish=STOP))
        assert (await good).token_ids == [10]


@pytest.mark.asyncio
async def test_admission_names_its_limit(model):
    made = tokenizer_identity(model)
    verify = FakeVerify(identity(made.hash, made.vocab_size, max_sequences=1))
    async with (
        worker(verify, "127.0.0.1:0") as address,
        gateway(model, address) as running,
        AsyncClient(running.address) as client,
    ):
        tasks = [(await start(client, verify))[1] for _ in range(4)]
        with pytest.raises(Overloaded, match="limit of 4") as refused:
            await client.generate("hello")
        assert refused.value.retry_after
        tasks[0].cancel()
        await until(lambda: len(verify.live) == 3)
        for opened in list(verify.live):
            verify.commit(opened, Round((10,), finish=STOP))
        await asyncio.gather(*tasks[1:])
        verify.rounds = (Round((10,), finish=STOP),)
        assert (await client.generate("hello")).token_ids == [10]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "kind", "field"),
    [
        ({"grammar": "x"}, Unsupported, "grammar"),
        ({"json_schema": "x"}, Unsupported, "json_schema"),
        ({"adapter": "x"}, Unsupported, "adapter"),
        ({"lossy_threshold": 0.5}, Unsupported, "lossy_threshold"),
        ({"lossy_threshold": 0.5, "lossless": True}, InvalidRequest, "lossy_threshold"),
        ({"max_tokens": 0}, InvalidRequest, "max_tokens"),
        ({"max_tokens": 2**31}, InvalidRequest, "max_tokens"),
    ],
)
async def test_refusals_reach_a_client_that_checks_nothing(model, known, options, kind, field):
    verify = FakeVerify(known)
    asked = GenerateRequest(TextPrompt("hello"), GenerateOptions(**options))
    async with (
        worker(verify, "127.0.0.1:0") as address,
        gateway(model, address) as running,
        channel.public_channel(running.address) as foreign,
    ):
        with pytest.raises(kind) as refused, translated():
            await generate_stub(foreign).Generate(codec.encode_request(asked))
    assert refused.value.field == field and refused.value.trace_id
    assert not verify.opened


@pytest.mark.asyncio
async def test_a_server_without_speculation_never_drafts(model, known):
    verify, draft = FakeVerify(known, [Round((10,), finish=STOP)]), FakeDraft(known)
    async with (
        worker(verify, "127.0.0.1:0") as verify_at,
        worker(draft, "127.0.0.1:0") as draft_at,
        gateway(model, verify_at, draft_at, speculation=Speculation.OFF) as running,
        AsyncClient(running.address) as client,
    ):
        assert (await client.generate("hello")).token_ids == [10]
    assert verify.budgets[0].max_nodes == 0 and not draft.budgets
    assert verify.opened[0].speculation is Speculation.OFF
