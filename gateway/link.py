"""A long-lived stream to a worker that is opened again for as long as the gateway lives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import grpc

from foredraft.wire.channel import private_channel
from foredraft.wire.errors import BadMessage
from foredraft.wire.messages import WorkerIdentity
from foredraft.wire.peers import PeerStream
from gateway.health_watch import HealthWatch

logger = logging.getLogger(__name__)

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 1.0
# So long may a worker say that it does not serve: a long pass that ends costs nothing.
PATIENCE_SECONDS = 1.0
# So long at most is one waited for that is merely slow. A supervisor ends one that hangs in half of
# that; where there is none, requests must not wait for ever.
LONGEST_ILL_SECONDS = 60.0

Out = TypeVar("Out")
In = TypeVar("In")


class LinkError(Exception):
    """The worker is there but cannot be used, for the reason in the text."""


class Link(ABC, Generic[Out, In]):
    """Connects, shakes hands, reads; what is sent goes through a bounded outbox.

    A worker that hangs still keeps its connection, and so does one that is merely slow; both say
    that they do not serve. A subclass says whether such a worker is left, who the peer is and what
    is done with what it sends.
    """

    outbox_size = 1024

    def __init__(self, address: str) -> None:
        self.address = address
        self.identity: WorkerIdentity | None = None  # set while the link is up
        self.ill = False  # up, but for a while the worker has said that it does not serve
        self._outbox: asyncio.Queue[Out] = asyncio.Queue(self.outbox_size)
        self._overflowed = asyncio.Event()
        self._last_complaint = ""

    @property
    def up(self) -> bool:
        return self.identity is not None

    @property
    def well(self) -> bool:
        return self.up and not self.ill

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                await self._session()
            except (grpc.aio.AioRpcError, LinkError, BadMessage) as error:
                self._complain(error)
            if self.up:
                self.identity = None
                self._went_down()
                wait = FIRST_WAIT_SECONDS
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    def send(self, message: Out) -> None:
        """Queue a message; never waits. A peer that leaves too many unread is cut off."""
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self._overflowed.set()

    @abstractmethod
    async def _greet(self, channel: grpc.aio.Channel) -> tuple[WorkerIdentity, PeerStream[Out, In]]:
        """Shake hands and open the stream.

        Raises:
            LinkError: the worker is not one that can be used.
        """

    @abstractmethod
    def _came_up(self) -> None: ...

    @abstractmethod
    def _went_down(self) -> None: ...

    @abstractmethod
    def _health_changed(self) -> None:
        """The worker is `ill` now, or well again.

        Raises:
            LinkError: it is left for that.
        """

    @abstractmethod
    def _receive(self, message: In) -> None: ...

    async def _session(self) -> None:
        """One life of the stream: until the peer ends it or something fails."""
        async with private_channel(self.address) as channel, HealthWatch(channel) as health:
            if not await health.serving():
                logger.info("waiting until %s serves", self.address)
                await health.until_serving()
            identity, stream = await self._greet(channel)
            self._outbox = asyncio.Queue(self.outbox_size)
            self._overflowed.clear()
            self.identity, self.ill = identity, False
            self._last_complaint = ""
            logger.info("connected to %s at %s", identity.model.model_id, self.address)
            parts = self._read(stream), self._write(stream)
            watches = self._watch_overflow(), self._watch_health(health)
            tasks = [asyncio.create_task(part) for part in (*parts, *watches)]
            try:
                self._came_up()
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                stream.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, stream: PeerStream[Out, In]) -> None:
        while (message := await stream.read()) is not None:
            self._receive(message)
        raise LinkError("the worker ended the stream")

    async def _write(self, stream: PeerStream[Out, In]) -> None:
        # A stream that is over refuses to be written to; the reader knows why it ended.
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            while True:
                await stream.write(await self._outbox.get())
        await asyncio.Event().wait()

    async def _watch_overflow(self) -> None:
        await self._overflowed.wait()
        raise LinkError(f"the worker left more than {self.outbox_size} messages unread")

    async def _watch_health(self, health: HealthWatch) -> None:
        while True:
            await health.until_ill(PATIENCE_SECONDS)
            self.ill = True
            self._health_changed()
            try:
                async with asyncio.timeout(LONGEST_ILL_SECONDS):
                    await health.until_serving()
            except TimeoutError as error:
                text = f"the worker has not served for {LONGEST_ILL_SECONDS:g} s"
                raise LinkError(text) from error
            self.ill = False
            self._health_changed()

    def _complain(self, error: Exception) -> None:
        """Once per reason: a worker that stays away is not worth a line per second.

        One that is not there yet is only waited for; one that was lost or cannot be used is a
        fault.
        """
        reason = _reason(error)
        awaited = not self.up and isinstance(error, grpc.aio.AioRpcError)
        if self.up or reason != self._last_complaint:
            level = logging.INFO if awaited else logging.WARNING
            logger.log(level, "no stream to %s: %s", self.address, reason)
        self._last_complaint = reason


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name} {error.details()}"
    return str(error)
