"""The standard gRPC health service: not serving, serving, shutting down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_SERVING: int = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
_Context = grpc.aio.ServicerContext[Any, Any]


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers for the whole server ("") and for one named service, always alike.

    Unlike those of the library's own servicer, watches end when the server shuts down: whoever
    watches would keep it waiting for the whole grace time.
    """

    def __init__(self, service: str) -> None:
        self._names = ("", service)
        self._serving = False
        self._over = False
        self._changed = asyncio.Condition()

    async def attach(self, server: grpc.aio.Server) -> None:
        """Register at a server that has not started; it is not serving yet."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def set_serving(self, serving: bool) -> None:
        async with self._changed:
            self._serving = serving and not self._over
            self._changed.notify_all()

    async def shut_down(self) -> None:
        """Not serving, for good."""
        self._over = True
        await self.set_serving(False)

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        told: int | None = None
        while not self._over or told != self._status(request.service):
            told = self._status(request.service)
            yield health_pb2.HealthCheckResponse(status=told)
            async with self._changed:
                await self._changed.wait_for(partial(self._has_news, request.service, told))

    def _status(self, service: str) -> int:
        if service not in self._names:
            return _UNKNOWN
        return _SERVING if self._serving else _NOT_SERVING

    def _has_news(self, service: str, told: int) -> bool:
        return self._over or self._status(service) != told
