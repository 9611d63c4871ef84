"""What a worker has to say on one stream, and how much a gateway may leave unheard or unasked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from foredraft.wire.errors import Overloaded

MAX_WAITING = 1024  # a gateway that lets more pile up has stopped reading
_BUSY_SECONDS = 0.005

T = TypeVar("T")


class Outbox(Generic[T]):
    """A bounded queue that ends once, in order or with an error. Lives on the event loop."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[T | None] = asyncio.Queue()
        self._error: Exception | None = None
        self._ended = False

    def put(self, item: T) -> None:
        """Send ``item``; the stream is ended if its reader does not keep up."""
        if self._ended:
            return
        if self._items.qsize() >= MAX_WAITING:
            self.end(Overloaded(f"{MAX_WAITING} answers wait unread: the stream is ended"))
            return
        self._items.put_nowait(item)

    def end(self, error: Exception | None = None) -> None:
        """Nothing more is sent; the reader gets what waits, then ``error`` if there is one."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._items.put_nowait(None)

    async def read(self) -> AsyncIterator[T]:
        """The answers until the end."""
        while (item := await self._items.get()) is not None:
            yield item
        if self._error is not None:
            raise self._error


async def until_taken(waiting: Callable[[], int]) -> None:
    """Return once an engine's inbox, in which ``waiting`` messages are, has room for more.

    Nothing is read from the streams meanwhile, so that their senders feel it, too.
    """
    while waiting() >= MAX_WAITING:  # noqa: ASYNC110 -- a thread without a loop takes them
        await asyncio.sleep(_BUSY_SECONDS)
