"""Clients of the gRPC door that do not read: they are cut off, and their places given back."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from support.fakes import FakeVerify, Round, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient, Overloaded
from foredraft.call import build_request
from foredraft.params import FinishReason
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.v1 import generate_pb2_grpc as pb_grpc
from foredraft.wire.channel import bind, public_server
from foredraft.wire.codec import generate as codec
from foredraft.wire.errors import Failed
from foredraft.wire.interceptor import ErrorInterceptor
from foredraft.wire.messages import TokenLogprobs
from gateway.access import Access
from gateway.generate_service import GenerateService
from gateway.stall import StallLimit

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
        service = GenerateService(running.intake, Access(None, None), stall_seconds=2.0)
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
async def test_each_write_has_the_whole_time():
    """Together they take longer than any of them may."""
    async with StallLimit(0.5) as limit:
        for _ in range(12):
            await limit.taken(asyncio.sleep(0.05))


@pytest.mark.asyncio
async def test_time_between_writes_does_not_count():
    async with StallLimit(0.1) as limit:
        await limit.taken(asyncio.sleep(0))
        await asyncio.sleep(0.35)
        await limit.taken(asyncio.sleep(0))


@pytest.mark.asyncio
async def test_a_write_that_is_not_taken_ends_the_block():
    limit = StallLimit(0.1)
    with pytest.raises(Failed, match=r"taken nothing for 0\.1 s"):
        async with limit:
            await limit.taken(asyncio.sleep(0))
            await limit.taken(asyncio.sleep(60))


@pytest.mark.asyncio
async def test_a_call_that_is_cancelled_stays_cancelled():
    async def stream() -> None:
        async with StallLimit(0.1) as limit:
            await limit.taken(asyncio.sleep(60))

    streaming = asyncio.create_task(stream())
    await asyncio.sleep(0)
    streaming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await streaming
