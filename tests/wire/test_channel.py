"""The options of a private hop do what they are there for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import grpc
import pytest
from support import silent_server

from foredraft.v1 import verify_pb2 as pb
from foredraft.v1 import verify_pb2_grpc as pb_grpc
from foredraft.wire import channel

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")  # an empty frame of them
CLOSING = ("grpc.server_handshake_timeout_ms", "grpc.max_connection_idle_ms")


@contextlib.asynccontextmanager
async def silent_stream():
    """A process and a stream to it that has carried one message each way."""
    script = Path(silent_server.__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        address = (await process.stdout.readline()).decode().strip()
        async with channel.private_channel(address) as opened:
            call = pb_grpc.VerifyServiceStub(opened).Verify()
            await call.write(pb.VerifyRequest())
            await call.read()
            yield process, call
            call.cancel()
    finally:
        process.kill()
        await process.wait()


@pytest.mark.asyncio
async def test_a_stopped_peer_is_noticed():
    """Without a ping timeout of ours this read would wait for a minute and more."""
    async with silent_stream() as (process, call):
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await asyncio.wait_for(call.read(), 20)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_silent_stream_lives_on():
    """A server with default options ends it after three pings without data."""
    async with silent_stream() as (_, call):
        await asyncio.sleep(5)
        await call.write(pb.VerifyRequest())
        assert await asyncio.wait_for(call.read(), 20) == pb.VerifyResponse()


@pytest.mark.asyncio
async def test_a_port_in_use_is_refused():
    first, second = channel.private_server([]), channel.private_server([])
    address = channel.bind(first, "127.0.0.1:0")
    await first.start()
    with pytest.raises(RuntimeError):
        channel.bind(second, address)
    await first.stop(None)


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [b"", PREFACE[:10], PREFACE, PREFACE + SETTINGS])
async def test_a_public_connection_without_a_call_is_closed(monkeypatch, said):
    """A server with default options keeps it for minutes, or for ever."""
    quick = [(name, 500 if name in CLOSING else value) for name, value in channel._PUBLIC_SERVER]
    monkeypatch.setattr(channel, "_PUBLIC_SERVER", quick)
    server = channel.public_server([])
    address = channel.bind(server, "127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection(*address.split(":"))
    try:
        writer.write(said)
        async with asyncio.timeout(20):
            while await reader.read(1024):
                pass
    finally:
        writer.close()
        await server.stop(0)


@pytest.mark.asyncio
async def test_a_public_connection_too_many_is_closed_at_once(monkeypatch):
    few = [
        (name, 2 if value == channel.MAX_CONNECTIONS and "connections" in name else value)
        for name, value in channel._PUBLIC_SERVER
    ]
    monkeypatch.setattr(channel, "_PUBLIC_SERVER", few)
    server = channel.public_server([])
    address = channel.bind(server, "127.0.0.1:0")
    await server.start()
    said = []
    async with contextlib.AsyncExitStack() as ends:
        ends.push_async_callback(server.stop, 0)
        for _ in range(4):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            ends.callback(writer.close)
            said.append(await asyncio.wait_for(_first_byte(reader), 20))
    # A server begins with its settings.
    assert [len(first) for first in said] == [1, 1, 0, 0]


async def _first_byte(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(1)
    except ConnectionResetError:
        return b""
