"""The HTTP door as the gateway's process has it: it listens, serves, and closes in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from foredraft.wire.serving import GRACE_SECONDS
from gateway.http.connection import Connection

_BACKLOG = 1024


class HttpDoor:
    """``address`` is HOST:PORT, with the port that was given for port 0."""

    def __init__(self, listen: str, app: web.Application) -> None:
        """Raises OSError if ``listen`` cannot be listened on."""
        host, _, port = listen.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        self._socket = socket.create_server((bare, int(port)), family=family, backlog=_BACKLOG)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,  # a client that is gone ends its request
            # The library waits so long for handlers, and as long again before it cancels them.
            shutdown_timeout=GRACE_SECONDS / 2,
        )
        self._listening: asyncio.Server | None = None
        self._closing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve until the block or `close` ends it; returns when no request is open."""
        await self._runner.setup()
        try:
            await self._listen()
            yield
        finally:
            await self.close()

    def close(self) -> asyncio.Task[None]:
        """Take no more requests and give those that run the grace time; the task does it."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def _listen(self) -> None:
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None, "the runner has been set up"
        self._listening = await loop.create_server(
            lambda: Connection(server, loop), sock=self._socket, backlog=_BACKLOG
        )

    def _connections(self) -> list[Connection]:
        server = self._runner.server
        open_now = [] if server is None else server.connections
        return [connection for connection in open_now if isinstance(connection, Connection)]

    async def _close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        for connection in self._connections():
            connection.hurry()
        await self._runner.cleanup()
