"""Requests whose verify worker was lost: they wait for another one, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.request import Request


class Stranded:
    """``give_up`` is told of a request that has waited for ``limit`` seconds; 0: at once."""

    def __init__(self, limit: float, give_up: Callable[[Request], None]) -> None:
        self._limit = limit
        self._give_up = give_up
        self._waiting: dict[int, tuple[Request, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        if self._limit <= 0:
            self._give_up(request)
            return
        timer = asyncio.get_running_loop().call_later(self._limit, self._expire, request)
        self._waiting[request.seq_id] = request, timer

    def discard(self, request: Request) -> None:
        """It waits no more, if it did."""
        waiting = self._waiting.pop(request.seq_id, None)
        if waiting is not None:
            waiting[1].cancel()

    def take_all(self) -> list[Request]:
        """Those that wait, in the order in which they came; they wait no more."""
        requests = [request for request, _ in self._waiting.values()]
        for request in requests:
            self.discard(request)
        return requests

    def _expire(self, request: Request) -> None:
        self.discard(request)
        self._give_up(request)
