"""What a worker says of its own health, as long as a channel to it lives."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_SERVING = health_pb2.HealthCheckResponse.SERVING


class HealthWatch:
    """One call of the standard health service. One coroutine at a time may wait.

    A worker that tells nothing of its health, or nothing more, counts as healthy: whether it is
    there at all is seen from its stream.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        stub = health_pb2_grpc.HealthStub(channel)
        self._call: Any = stub.Watch(health_pb2.HealthCheckRequest())
        self._reading: asyncio.Future[Any] | None = None

    async def __aenter__(self) -> HealthWatch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def serving(self) -> bool:
        """The news: it serves, or does not. The first come at once, others when that changes.

        Raises:
            grpc.aio.AioRpcError: the connection failed.
        """
        # A read that is cancelled would end the call, so it outlives whoever waits for it.
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        await asyncio.wait((self._reading,))
        try:
            answer = self._reading.result()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            answer = grpc.aio.EOF  # type: ignore[attr-defined]
        if answer is grpc.aio.EOF:  # type: ignore[attr-defined]
            self._reading = asyncio.get_running_loop().create_future()  # there will be no more
            return True
        self._reading = None
        return bool(answer.status == _SERVING)

    async def until_serving(self) -> None:
        """Raises what `serving` does."""
        while not await self.serving():
            pass

    async def until_ill(self, patience: float) -> None:
        """Return when it has not served for ``patience`` seconds, once it did.

        Raises what `serving` does.
        """
        while True:
            if await self.serving():
                continue
            try:
                # Not wait_for: before Python 3.12 it may swallow that its own task is cancelled.
                async with asyncio.timeout(patience):
                    await self.until_serving()
            except TimeoutError:
                return
