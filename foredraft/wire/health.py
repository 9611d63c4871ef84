"""The standard gRPC health service: not serving, serving, shutting down."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """Answers for the whole server ("") and for one named service, always alike."""

    def __init__(self, service: str) -> None:
        self._names = ("", service)
        self._servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]

    async def attach(self, server: grpc.aio.Server) -> None:
        """Register at a server that has not started; it is not serving yet."""
        await self.set_serving(False)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_serving(self, serving: bool) -> None:
        for name in self._names:
            await self._servicer.set(name, _SERVING if serving else _NOT_SERVING)

    async def shut_down(self) -> None:
        """Not serving, for good."""
        await self._servicer.enter_graceful_shutdown()
