"""How many requests of one caller begin in a time."""

from __future__ import annotations

import asyncio

from asyncio_throttle.throttler import Throttler

from foredraft.config import RateLimit
from foredraft.wire.errors import Overloaded


class Rates:
    """A rate for each caller; a burst waits in a short queue and the rest is turned away."""

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._queues: dict[int, _Queue] = {}  # by caller; there are no more than keys

    async def take_turn(self, caller: int) -> None:
        """Wait until the caller may begin one more request.

        Raises:
            Overloaded: as many as may begin at a time wait already.
        """
        queue = self._queues.get(caller)
        if queue is None:
            queue = self._queues[caller] = _Queue(self._limit)
        await queue.take_turn()


class _Queue:
    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._throttler = Throttler(limit.count, limit.seconds)
        # The throttler wakes whoever polls first, and each that waits polls: so only one does.
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def take_turn(self) -> None:
        if self._waiting >= self._limit.count:
            raise Overloaded(f"the rate of {self._limit} is reached", self._limit.seconds)
        self._waiting += 1
        try:
            async with self._turn:
                await self._throttler.acquire()  # type: ignore[no-untyped-call]
        finally:
            self._waiting -= 1
