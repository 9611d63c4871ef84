"""What a connection is told that is one too many: nothing of it is parsed."""

from __future__ import annotations

import asyncio
import json

from foredraft.wire.errors import RETRY_SECONDS
from gateway.http.errors import ApiError

_READ_SECONDS = 1.0  # for the client to read it; closed at once, what it still sends would undo it

_ERROR = ApiError(503, "server_error", "too many connections are open", code="too_many_connections")


class Refusal(asyncio.Protocol):
    """Answers whatever is asked, and closes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._end: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        transport.set_protocol(self)
        transport.write(_reply())
        if transport.can_write_eof():
            transport.write_eof()
        self._end = self._loop.call_later(_READ_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()


def _reply() -> bytes:
    body = json.dumps(_ERROR.body()).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        "Content-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Retry-After: {max(1, round(RETRY_SECONDS))}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
