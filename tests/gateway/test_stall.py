"""Clients of the gRPC door that do not read: they are cut off, and their places given back."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import grpc
import pytest
from support.fakes import PATIENCE_SECONDS, FakeVerify, Round, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient, Overloaded
from foredraft.call import build_request
from foredraft.config import GatewayConfig
from foredraft.params import FinishReason
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.v1 import generate_pb2_grpc as pb_grpc
from foredraft.wire import serving
from foredraft.wire.channel import bind, public_server
from foredraft.wire.codec import generate as codec
from foredraft.wire.errors import Failed
from foredraft.wire.interceptor import ErrorInterceptor
from foredraft.wire.messages import TokenLogprobs
from foredraft.wire.serving import serve_until_stopped
from gateway import stall
from gateway.access import Access
from gateway.generate_service import GenerateService
from gateway.server import Gateway
from gateway.stall import Patience

TOKENS = 1000
PLACES = 4  # of one sequence that runs and those that wait behind it
# More than a client's buffers hold that does not read.
ANSWER = Round(
    TOKENS * (10,),
    finish=FinishReason.LENGTH,
    logprobs=TOKENS * (TokenLogprobs(-1.0, tuple(range(20)), 20 * (-2.0,)),),
)
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0),)


@pytest.mark.asyncio
async def test_answers_that_nobody_reads_give_their_places_back(tmp_path):
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    made = tokenizer_identity(model)
    verify = FakeVerify(
        identity(made.hash, made.vocab_size, context=2 * TOKENS, max_sequences=1), [ANSWER]
    )
    async with (
        worker(verify, f"unix:{tmp_path}/verify") as address,
        gateway(model, address) as running,
    ):
        server = public_server([ErrorInterceptor()])
        service = GenerateService(running.intake, Access(None, None), Patience(2.0))
        pb_grpc.add_GenerateServiceServicer_to_server(service, server)
        listening = bind(server, "127.0.0.1:0")
        await server.start()
        options = {"max_tokens": TOKENS, "logprobs": 20}
        wire = codec.encode_stream_request(build_request("hello", None, "", options))
        async with (
            grpc.aio.insecure_channel(listening, options=SMALL_WINDOW) as channel,
            AsyncClient(listening) as other,
        ):
            stub = pb_grpc.GenerateServiceStub(channel)
            unread = [stub.GenerateStream(wire) for _ in range(PLACES)]
            await until(lambda: len(verify.opened) == PLACES and not verify.live)
            with pytest.raises(Overloaded, match=f"limit of {PLACES} requests"):
                await other.generate("hello", max_tokens=TOKENS)
            await until(lambda: not running.intake._admission._inside)
            assert (await other.generate("hello", max_tokens=TOKENS)).finish_reason == "length"
            for call in unread:
                with pytest.raises(grpc.aio.AioRpcError, match="taken nothing for 2 s") as told:
                    while await call.read() is not grpc.aio.EOF:
                        pass
                assert told.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await server.stop(0)


@pytest.mark.asyncio
async def test_an_end_waits_for_answers_that_are_read_and_no_others(tmp_path, monkeypatch):
    """The grace time of this one is longer than any test."""
    monkeypatch.setattr(stall, "LAST_SECONDS", 0.1)
    monkeypatch.setattr(serving, "_FLUSH_SECONDS", 0.1)
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    made = tokenizer_identity(model)
    known = identity(made.hash, made.vocab_size, context=2 * TOKENS)
    verify = FakeVerify(known, [replace(ANSWER, finish=None)])
    async with worker(verify, f"unix:{tmp_path}/verify") as address:
        running = Gateway(GatewayConfig("127.0.0.1:0", model, (address,)))
        parts = running.server, running.health, running.work()
        ends = {"drain": running.drain, "idle": running.idle}
        over = asyncio.create_task(serve_until_stopped(*parts, **ends, grace=600.0))
        await until(lambda: running.relay.ready)
        options = {"max_tokens": TOKENS + 1, "logprobs": 20}
        wire = codec.encode_stream_request(build_request("hello", None, "", options))
        async with (
            grpc.aio.insecure_channel(running.address, options=SMALL_WINDOW) as channel,
            AsyncClient(running.address) as other,
        ):
            unread = pb_grpc.GenerateServiceStub(channel).GenerateStream(wire)
            await until(lambda: verify.opened)
            read = asyncio.create_task(other.generate("hello", **options))
            await until(lambda: len(verify.opened) == 2)
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: running.intake._admission._inside == 1)
            assert not over.done()
            verify.commit(verify.opened[1].seq_id, Round((11,), finish=FinishReason.LENGTH))
            assert (await read).token_ids == [*ANSWER.tokens, 11]
            async with asyncio.timeout(PATIENCE_SECONDS):
                await over
            with pytest.raises(grpc.aio.AioRpcError) as told:
                while await unread.read() is not grpc.aio.EOF:
                    pass
            assert told.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_patience_that_has_run_out_ends_what_is_not_taken(monkeypatch):
    monkeypatch.setattr(stall, "LAST_SECONDS", 0.05)
    patience = Patience(600.0)

    async def stream() -> None:
        async with patience.limit() as limit:
            await limit.taken(asyncio.sleep(600))

    streaming = asyncio.create_task(stream())
    await asyncio.sleep(0.1)
    assert not streaming.done()
    patience.run_out()
    with pytest.raises(Failed, match=r"taken nothing for 0\.05 s"):
        await asyncio.wait_for(streaming, PATIENCE_SECONDS)
    assert not patience._limits


@pytest.mark.asyncio
async def test_each_write_has_the_whole_time():
    """Together they take longer than any of them may."""
    async with Patience(0.5).limit() as limit:
        for _ in range(12):
            await limit.taken(asyncio.sleep(0.05))


@pytest.mark.asyncio
async def test_time_between_writes_does_not_count():
    async with Patience(0.1).limit() as limit:
        await limit.taken(asyncio.sleep(0))
        await asyncio.sleep(0.35)
        await limit.taken(asyncio.sleep(0))


@pytest.mark.asyncio
async def test_a_write_that_is_not_taken_ends_the_block():
    limit = Patience(0.1).limit()
    with pytest.raises(Failed, match=r"taken nothing for 0\.1 s"):
        async with limit:
            await limit.taken(asyncio.sleep(0))
            await limit.taken(asyncio.sleep(60))


@pytest.mark.asyncio
async def test_a_call_that_is_cancelled_stays_cancelled():
    async def stream() -> None:
        async with Patience(0.1).limit() as limit:
            await limit.taken(asyncio.sleep(60))

    streaming = asyncio.create_task(stream())
    await asyncio.sleep(0)
    streaming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await streaming
