"""Requests in a state that may last for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.request import Request


class TimeLimit:
    """``over`` is told of a request that has been in the state for ``seconds``; 0: at once."""

    def __init__(self, seconds: float, over: Callable[[Request], None]) -> None:
        self._seconds = seconds
        self._over = over
        self._waiting: dict[int, tuple[Request, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        if self._seconds <= 0:
            self._over(request)
            return
        timer = asyncio.get_running_loop().call_later(self._seconds, self._end, request)
        self._waiting[request.seq_id] = request, timer

    def discard(self, request: Request) -> None:
        """It has left the state, if it was in it."""
        waiting = self._waiting.pop(request.seq_id, None)
        if waiting is not None:
            waiting[1].cancel()

    def take_all(self) -> list[Request]:
        """Those in the state, in the order in which they came; they leave it."""
        requests = [request for request, _ in self._waiting.values()]
        for request in requests:
            self.discard(request)
        return requests

    def _end(self, request: Request) -> None:
        self.discard(request)
        self._over(request)
