"""Readers that do not read: each write has to be taken within a limited time.

A process that is to end gives them less of it: whoever waits for them would wait in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Self

import grpc

from foredraft.wire.errors import Failed

# A reader that takes nothing for so long is gone: its request holds places that others need.
STALL_SECONDS = 60.0
# At the end, of the few seconds that all answers have.
LAST_SECONDS = 1.0


class Patience:
    """How long readers may take nothing, for all answers of a door at once."""

    def __init__(self, seconds: float = STALL_SECONDS) -> None:
        self.seconds = seconds
        self._limits: set[StallLimit] = set()

    def limit(self) -> StallLimit:
        return StallLimit(self)

    def run_out(self) -> None:
        """From now on there is little of it."""
        self.seconds = min(self.seconds, LAST_SECONDS)
        for limit in self._limits:
            limit.look()

    def enter(self, limit: StallLimit) -> None:
        self._limits.add(limit)

    def leave(self, limit: StallLimit) -> None:
        self._limits.discard(limit)


class StallLimit:
    """A block with the writes of one answer; it ends with `Failed` if one is not taken.

    One timer watches all of them: one for each would cost about as much as the write.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # when the write began that is not taken yet
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._patience.enter(self)
        self.look()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._patience.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            text = f"the client has taken nothing for {self._patience.seconds:g} s"
            raise Failed(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None

    async def taken(self, write: Awaitable[None]) -> None:
        self._since = self._loop.time()
        await write
        self._since = None

    def look(self) -> None:
        """Is it time? If not, look again when it could be."""
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.time()
        end = self._patience.seconds + (now if self._since is None else self._since)
        if end > now:
            self._timer = self._loop.call_at(end, self.look)
        else:
            self._limit.reschedule(now)
