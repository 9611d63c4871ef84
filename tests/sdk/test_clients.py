"""Both clients against a gateway whose target is scripted."""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager

import pytest
from support.fakes import FakeVerify, Round, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient, Client, DeadlineExceeded, InvalidRequest, Unavailable
from foredraft.params import FinishReason
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.messages import TokenLogprobs

ANSWER = [
    Round((10, 11), 1, True, 4),
    Round((12,), 0, False, 4),
    Round((13, 14), 1, True, 4, FinishReason.STOP),
]
ENDLESS = [Round((10, 11)), Round((12,))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"), 259)


@asynccontextmanager
async def served(model, rounds):
    """The scripted target and the gateway's address."""
    made = tokenizer_identity(model)
    verify = FakeVerify(identity(made.hash, made.vocab_size, max_sequences=100), rounds)
    async with (
        worker(verify, "127.0.0.1:0") as address,
        gateway(model, address) as running,
    ):
        yield verify, running.address


@pytest.mark.asyncio
async def test_sync_answer(model):
    def use(address):
        with Client(address) as client:
            whole = client.generate("hello", max_tokens=64, temperature=0.0, top_p=0.9, seed=1)
            stream = client.stream([50, 51], stop=["zzz"], speculation="off")
            deltas = list(stream)
            return whole, deltas, stream.result, client.models()

    async with served(model, ANSWER) as (verify, address):
        whole, deltas, streamed, models = await asyncio.to_thread(use, address)
    assert whole.token_ids == streamed.token_ids == [10, 11, 12, 13, 14]
    assert [t for delta in deltas for t in delta.token_ids] == whole.token_ids
    assert "".join(delta.text for delta in deltas) == streamed.text == whole.text
    assert whole.finish_reason == streamed.finish_reason == "stop"
    assert whole.seed == 1 and whole.logprobs is None
    assert (whole.stats.steps, whole.stats.hit_steps) == (3, 2)
    assert whole.stats.accepted_by_depth == [2] and streamed.stats == replaced(whole.stats, 2)
    assert verify.opened[1].prompt == (50, 51)
    assert models[0].model_id == whole.model == "tiny"


def replaced(stats, prompt_tokens):
    """The second prompt has another length; all else is equal."""
    return type(stats)(
        stats.steps,
        stats.tokens_per_step,
        stats.accepted_by_depth,
        stats.hit_steps,
        prompt_tokens,
        stats.completion_tokens,
        stats.verified_nodes,
    )


@pytest.mark.asyncio
async def test_async_answer(model):
    async with served(model, ANSWER) as (_, address), AsyncClient(address) as client:
        whole = await client.generate(messages=[{"role": "user", "content": "hi"}], seed=3)
        async with client.stream("hello") as stream:
            with pytest.raises(RuntimeError, match="last delta"):
                _ = stream.result
            deltas = [delta async for delta in stream]
    assert whole.token_ids == stream.result.token_ids == [10, 11, 12, 13, 14]
    assert "".join(delta.text for delta in deltas) == whole.text == stream.result.text
    assert whole.seed == 3 and len(whole.trace_id) == 32


@pytest.mark.asyncio
async def test_log_probabilities(model):
    entries = (TokenLogprobs(-0.5, (10, 20), (-0.5, -1.0)), TokenLogprobs(-0.25, (11,), (-0.25,)))
    rounds = [Round((10, 11), logprobs=entries, finish=FinishReason.LENGTH)]
    async with served(model, rounds) as (_, address), AsyncClient(address) as client:
        result = await client.generate("hello", logprobs=2)
        async with client.stream("hello", logprobs=2) as stream:
            async for _ in stream:
                pass
    assert result.logprobs == stream.result.logprobs
    assert [entry.token_id for entry in result.logprobs] == [10, 11]
    assert [top.token_id for top in result.logprobs[0].top] == [10, 20]
    assert result.logprobs[1].logprob == -0.25 and result.finish_reason == "length"


@pytest.mark.asyncio
async def test_leaving_the_loop_a_hundred_times_sync(model):
    def use(address):
        with Client(address) as client:
            for turn in range(100):
                try:
                    for delta in client.stream("hello"):
                        assert delta.token_ids
                        if turn % 2:
                            raise KeyError
                        break
                except KeyError:
                    pass
            return wait_inside(client)

    def wait_inside(client):
        """The client stays open: the calls must end by themselves, not with the channel."""
        asyncio.run_coroutine_threadsafe(until(lambda: not verify.live), loop).result()
        return client.address

    loop = asyncio.get_running_loop()
    async with served(model, ENDLESS) as (verify, address):
        assert await asyncio.to_thread(use, address) == address
        assert len(verify.closed) == len(verify.opened) == 100


@pytest.mark.asyncio
async def test_leaving_the_loop_a_hundred_times_async(model):
    async with served(model, ENDLESS) as (verify, address), AsyncClient(address) as client:
        gc.disable()
        try:
            for turn in range(100):
                try:
                    async for delta in client.stream("hello"):
                        assert delta.token_ids
                        if turn % 2:
                            raise KeyError
                        break
                except KeyError:
                    pass
            await until(lambda: len(verify.closed) == 100)
        finally:
            gc.enable()
        assert not verify.live


@pytest.mark.asyncio
async def test_cancelled_result_sync(model):
    def use(address):
        with Client(address) as client, client.stream("hello", seed=8) as stream:
            for delta in stream:
                if 12 in delta.token_ids:
                    stream.cancel()
            return stream.result

    async with served(model, ENDLESS) as (verify, address):
        result = await asyncio.to_thread(use, address)
        await until(lambda: not verify.live)
    assert result.finish_reason == "cancelled" and result.token_ids == [10, 11, 12]
    assert result.seed == 8 and result.trace_id in verify.opened[0].traceparent
    assert result.stats.completion_tokens == 3


@pytest.mark.asyncio
async def test_cancel_before_the_first_delta(model):
    async with served(model, []) as (verify, address), AsyncClient(address) as client:
        stream = client.stream("hello")
        reading = asyncio.create_task(anext(aiter(stream), None))
        await until(lambda: verify.live)
        stream.cancel()
        assert await reading is None
        await until(lambda: not verify.live)
        assert stream.result.finish_reason == "cancelled" and stream.result.token_ids == []


@pytest.mark.asyncio
async def test_a_cancelled_task_stays_cancelled(model):
    async with served(model, []) as (verify, address), AsyncClient(address) as client:

        async def use():
            async for _ in client.stream("hello"):
                pass

        task = asyncio.create_task(use())
        await until(lambda: verify.live)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not verify.live)


@pytest.mark.asyncio
async def test_deadline(model):
    def use(address):
        with Client(address) as client:
            with pytest.raises(DeadlineExceeded) as refused:
                client.generate("hello", timeout=0.3)
            with pytest.raises(DeadlineExceeded):
                list(client.stream("hello", timeout=0.3))
            return refused.value.code

    async with served(model, ENDLESS) as (verify, address):
        assert await asyncio.to_thread(use, address) == "DEADLINE_EXCEEDED"
        await until(lambda: not verify.live)


@pytest.mark.asyncio
async def test_errors_carry_field_and_trace(model):
    def use(address):
        with Client(address) as client:
            with pytest.raises(InvalidRequest) as whole:
                client.generate("hello", stop_token_ids=[259])
            with pytest.raises(InvalidRequest) as streamed:
                list(client.stream("hello", stop_token_ids=[259]))
            with pytest.raises(InvalidRequest) as unknown:
                client.generate("hello", model="huge")
            with pytest.raises(InvalidRequest) as unsent:
                client.generate("hello", max_tokens=-1)
            with pytest.raises(TypeError, match="max_token"):
                client.stream("hello", max_token=1)
            return whole.value, streamed.value, unsent.value, unknown.value

    async with served(model, []) as (verify, address):
        whole, streamed, unsent, unknown = await asyncio.to_thread(use, address)
    assert whole.field == streamed.field == "stop_token_ids" and len(whole.trace_id) == 32
    assert whole.message == "stop_token_ids must be token ids from 0 to 258"
    assert unknown.field == "model" and str(unknown) == "model must be tiny or empty"
    assert unsent.field == "max_tokens" and unsent.trace_id is None
    assert not verify.opened


@pytest.mark.parametrize("keywords", [{"max_tokens": 0}, {"timeout": "5"}, {"model": 5}])
@pytest.mark.asyncio
async def test_both_clients_refuse_at_the_call(keywords):
    """Nothing listens there: a refusal must not need a server."""
    (field,) = keywords
    asynchronous = AsyncClient("127.0.0.1:1")
    with Client("127.0.0.1:1") as client:
        for call in (client.generate, client.stream, asynchronous.stream):
            with pytest.raises(InvalidRequest, match=f"{field} must be") as refused:
                call("hello", **keywords)
            assert refused.value.field == field
    async with asynchronous:
        with pytest.raises(InvalidRequest, match=f"{field} must be"):
            await asynchronous.generate("hello", **keywords)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_arguments_of_a_client(kind):
    with pytest.raises(InvalidRequest, match="address must be text"):
        kind(5)
    with pytest.raises(InvalidRequest, match="connect_timeout must be a number from 0"):
        kind("127.0.0.1:1", connect_timeout=None)


CLOSED = r"client must be open: close\(\) was called"


def test_a_closed_client_refuses_calls():
    with Client("127.0.0.1:1") as client:
        pass
    for call in (lambda: client.generate("a"), lambda: client.stream("a"), client.models):
        with pytest.raises(InvalidRequest, match=CLOSED) as refused:
            call()
        assert refused.value.field == "client"


@pytest.mark.asyncio
async def test_a_closed_async_client_refuses_calls():
    async with AsyncClient("127.0.0.1:1") as client:
        early = client.stream("a")
    with pytest.raises(InvalidRequest, match=CLOSED):
        client.stream("a")
    for call in (lambda: client.generate("a"), client.models, lambda: anext(aiter(early))):
        with pytest.raises(InvalidRequest, match=CLOSED) as refused:
            await call()
        assert refused.value.field == "client"


def test_no_server_sync():
    with (
        Client("127.0.0.1:1", connect_timeout=0.2) as client,
        pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"),
    ):
        client.generate("hello")


@pytest.mark.asyncio
async def test_no_server_async():
    async with AsyncClient("127.0.0.1:1", connect_timeout=0.2) as client:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            await client.generate("hello")
