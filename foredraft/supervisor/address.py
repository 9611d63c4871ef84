"""The public address: claimed before anything starts, asked until it answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from foredraft.wire.channel import public_channel

_POLL_SECONDS = 0.1
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def claim_port(host: str, port: int) -> int:
    """Return ``port``, or a free one for 0.

    Raises:
        OSError: it cannot be listened on; found here, it is one line instead of a child's death.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the server does: a port whose last connections are still winding down is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen()  # SO_REUSEADDR lets two sockets bind, only one may listen
        return int(probe.getsockname()[1])


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_address(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that listens on ``host``."""
    return join_address(_ANY_HOST.get(host, host), port)


def reachable(listened: str) -> str:
    """`local_address` of what a server listens on."""
    host, _, port = listened.rpartition(":")
    return local_address(host.strip("[]"), int(port))


async def wait_until_serving(address: str) -> None:
    """Return when the health service at ``address`` says so; it may not exist yet."""
    async with public_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                if await _serving(stub):
                    return
            await asyncio.sleep(_POLL_SECONDS)


async def _serving(stub: health_pb2_grpc.HealthStub) -> bool:
    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
