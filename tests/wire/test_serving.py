"""A server is healthy once its work says so, and stops in order when told."""

from __future__ import annotations

import asyncio
import os
import signal

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from foredraft.wire import channel
from foredraft.wire.health import Health
from foredraft.wire.serving import serve_until_stopped

SERVING = health_pb2.HealthCheckResponse.SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.asyncio
async def test_life_of_a_server():
    server = channel.private_server([])
    address = channel.bind(server, "127.0.0.1:0")
    health = Health("foredraft.v1.VerifyService")
    loaded = asyncio.Event()
    order = []

    async def work():
        await loaded.wait()
        await health.set_serving(True)
        order.append("ready")

    async def drain():
        order.append("drain")

    serving = asyncio.create_task(serve_until_stopped(server, health, work(), drain=drain))
    async with channel.private_channel(address) as opened:
        stub = health_pb2_grpc.HealthStub(opened)
        named = health_pb2.HealthCheckRequest(service="foredraft.v1.VerifyService")
        for request in (named, health_pb2.HealthCheckRequest()):
            assert (await stub.Check(request, wait_for_ready=True)).status == NOT_SERVING
        watch = stub.Watch(named)
        assert (await watch.read()).status == NOT_SERVING
        loaded.set()
        assert (await watch.read()).status == SERVING
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await watch.read()).status == NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
        await asyncio.wait_for(serving, 10)
    assert order == ["ready", "drain"]


@pytest.mark.asyncio
async def test_each_watcher_hears_of_its_service():
    server, health = channel.private_server([]), Health("named")
    address = channel.bind(server, "127.0.0.1:0")
    await health.attach(server)
    await server.start()
    async with channel.private_channel(address) as opened:
        stub = health_pb2_grpc.HealthStub(opened)
        names = ("", "named", "other")
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in names]
        said = [(await watch.read()).status for watch in watches]
        assert said == [NOT_SERVING, NOT_SERVING, SERVICE_UNKNOWN]
        watches[0].cancel()
        await health.set_serving(True)
        assert (await watches[1].read()).status == SERVING
        await health.shut_down()
        await health.set_serving(True)
        assert (await watches[1].read()).status == NOT_SERVING
        assert [await watch.read() for watch in watches[1:]] == [grpc.aio.EOF] * 2
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.Check(health_pb2.HealthCheckRequest(service="other"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    await server.stop(0)


@pytest.mark.asyncio
async def test_work_that_fails_stops_the_server():
    server = channel.private_server([])
    channel.bind(server, "127.0.0.1:0")

    async def work():
        raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        await serve_until_stopped(server, Health("x"), work())
