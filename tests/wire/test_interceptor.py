"""Our own errors reach the caller with their code and text; others without a word of theirs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from foredraft.params import InvalidField, Unsupported
from foredraft.v1 import verify_pb2 as pb
from foredraft.v1 import verify_pb2_grpc as pb_grpc
from foredraft.wire import channel
from foredraft.wire.errors import RETRY_AFTER_KEY, Overloaded, Unavailable
from foredraft.wire.health import Health
from foredraft.wire.interceptor import ErrorInterceptor


class Raising(pb_grpc.VerifyServiceServicer):
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.ended = asyncio.Event()

    async def Handshake(self, request, context):
        if self.error is not None:
            raise self.error
        return pb.VerifyServiceHandshakeResponse()

    async def Verify(self, request_iterator, context):
        try:
            async for _ in request_iterator:
                yield pb.VerifyResponse()
                if self.error is not None:
                    raise self.error
        finally:
            self.ended.set()


@asynccontextmanager
async def connected(servicer):
    server = channel.private_server([ErrorInterceptor()])
    pb_grpc.add_VerifyServiceServicer_to_server(servicer, server)
    address = channel.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with channel.private_channel(address) as opened:
            yield pb_grpc.VerifyServiceStub(opened)
    finally:
        await server.stop(None)


CASES = [
    (InvalidField("top_p", "in range"), "INVALID_ARGUMENT", "top_p must be in range"),
    (Unsupported("grammar"), "UNIMPLEMENTED", "grammar is not supported"),
    (Overloaded("8 requests wait", 1.5), "RESOURCE_EXHAUSTED", "8 requests wait"),
    (Unavailable("no target"), "UNAVAILABLE", "no target"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("error", "code", "text"), CASES)
async def test_known_errors(error, code, text):
    async with connected(Raising(error)) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as unary:
            await stub.Handshake(pb.VerifyServiceHandshakeRequest())
        call = stub.Verify()
        await call.write(pb.VerifyRequest())
        assert await call.read() == pb.VerifyResponse()
        with pytest.raises(grpc.aio.AioRpcError) as stream:
            await call.read()
    for raised in (unary.value, stream.value):
        assert (raised.code().name, raised.details()) == (code, text)


@pytest.mark.asyncio
async def test_handlers_that_write_are_guarded_too():
    """The health service of grpc answers `Watch` from a coroutine."""
    server = channel.private_server([ErrorInterceptor()])
    address = channel.bind(server, "127.0.0.1:0")
    await Health("x").attach(server)
    await server.start()
    async with channel.private_channel(address) as opened:
        watch = health_pb2_grpc.HealthStub(opened).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
    await server.stop(None)


@pytest.mark.asyncio
async def test_retry_hint():
    async with connected(Raising(Overloaded("full", 1.5))) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Handshake(pb.VerifyServiceHandshakeRequest())
    assert dict(raised.value.trailing_metadata())[RETRY_AFTER_KEY] == "1500"


@pytest.mark.asyncio
async def test_unknown_errors_say_nothing(caplog):
    async with connected(Raising(RuntimeError("secret prompt in /a/path"))) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Handshake(pb.VerifyServiceHandshakeRequest())
    assert raised.value.code() is grpc.StatusCode.INTERNAL
    details = raised.value.details()
    assert "secret" not in details and "path" not in details
    incident = details.rpartition(" ")[2]
    assert incident in caplog.text and "secret prompt" in caplog.text


@pytest.mark.asyncio
async def test_a_cancelled_stream_ends_its_handler():
    servicer = Raising()
    async with connected(servicer) as stub:
        call = stub.Verify()
        await call.write(pb.VerifyRequest())
        await call.read()
        call.cancel()
        await asyncio.wait_for(servicer.ended.wait(), 5)


@pytest.mark.asyncio
async def test_messages_of_more_than_four_mebibytes_pass(tmp_path):
    server = channel.private_server([ErrorInterceptor()])
    pb_grpc.add_VerifyServiceServicer_to_server(Raising(), server)
    address = channel.bind(server, f"unix:{tmp_path}/verify.sock")
    await server.start()
    async with channel.private_channel(address) as opened:
        call = pb_grpc.VerifyServiceStub(opened).Verify()
        await call.write(pb.VerifyRequest(nodes=bytes(8 * 2**20)))
        assert await call.read() == pb.VerifyResponse()
        call.cancel()
    await server.stop(None)
