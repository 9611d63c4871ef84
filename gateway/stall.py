"""Readers that do not read: each write has to be taken within a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Self

import grpc

from foredraft.wire.errors import Failed

# A reader that takes nothing for so long is gone: its request holds places that others need.
STALL_SECONDS = 60.0


class StallLimit:
    """A block with the writes of one answer; it ends with `Failed` if one is not taken.

    One timer watches all of them: one for each would cost about as much as the write.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # when the write began that is not taken yet
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._look()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            text = f"the client has taken nothing for {self._seconds:g} s"
            raise Failed(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None

    async def taken(self, write: Awaitable[None]) -> None:
        self._since = self._loop.time()
        await write
        self._since = None

    def _look(self) -> None:
        now = self._loop.time()
        end = self._seconds + (now if self._since is None else self._since)
        if end > now:
            self._timer = self._loop.call_at(end, self._look)
        else:
            self._limit.reschedule(now)
