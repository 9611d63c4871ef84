"""One connection of the HTTP door: how long it may be silent, and what is told of its faults.

The library would log what it cannot parse and send it back. That may be a key or a prompt, so
nothing of a request gets into the log, nor into the answer to one that is malformed.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError

from foredraft.wire.channel import MAX_CONNECTIONS
from gateway.http.errors import api_error, encoding_unknown, malformed
from gateway.http.refusal import Refusal
from gateway.stall import LAST_SECONDS, STALL_SECONDS

logger = logging.getLogger(__name__)

# From its start, or from an answer, to the end of the next request's headers. Clients and proxies
# close a connection that rests after a minute at most: the door must not be the first to do so.
IDLE_SECONDS = 75.0


class Connection(web.RequestHandler):
    """``server`` knows all of them, and closes them in order."""

    __slots__ = ("_patience", "_peer", "_server", "_stalled")

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(server, loop=loop, access_log=None, keepalive_timeout=IDLE_SECONDS)  # type: ignore[arg-type]
        self._server = server
        self._peer: asyncio.Transport | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._patience = STALL_SECONDS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._server.connections) >= MAX_CONNECTIONS:
            assert isinstance(transport, asyncio.Transport)
            Refusal(self._loop).begin(transport)
            return
        super().connection_made(transport)
        self._peer = self.transport

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self._loop.call_later(self._patience, self._cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget()

    def hurry(self) -> None:
        """The door closes: a client that takes nothing would use up the time that all have."""
        self._patience = LAST_SECONDS
        if self._stalled is not None:
            self._forget()
            self._stalled = self._loop.call_later(self._patience, self._cut)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forget()
        self._peer = None
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what no handler has seen, or what none has caught.

        Raises:
            ConnectionError: there is nobody to be told, or an answer has begun.
        """
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionResetError("the client is gone")
        response = api_error(_fault(exc)).response()
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Where it was raised, without its text."""
        error = kw.get("exc_info")
        if isinstance(error, web.RequestPayloadError | HttpProcessingError):
            return  # of a body that nobody reads any more
        frames = "".join(traceback.format_tb(getattr(error, "__traceback__", None)))
        logger.error("a connection ends with %s:\n%s", type(error).__name__, frames)

    def _cut(self) -> None:
        if self._peer is not None:
            self._peer.abort()

    def _forget(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def _fault(error: BaseException | None) -> Exception:
    if isinstance(error, ContentEncodingError):
        return encoding_unknown()
    if isinstance(error, HttpProcessingError):
        return malformed()
    return error if isinstance(error, Exception) else TimeoutError()
