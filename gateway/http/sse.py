"""Server-sent events: begun with the first of them, so that a fault before has its own status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from gateway.http.errors import api_error

# A reader that takes nothing for so long is gone: its request holds places that others need.
STALL_SECONDS = 60.0

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies must pass events on one by one
}
_DONE = b"data: [DONE]\n\n"


async def send_events(
    request: web.Request, events: AsyncGenerator[dict[str, Any]]
) -> web.StreamResponse:
    """Send events as they come; an error ends the stream as its last event.

    Raises:
        Exception: what ``events`` raised before the first of them.
        ConnectionError: the client is gone or does not read.
    """
    response = web.StreamResponse(headers=_HEADERS)
    try:
        async with aclosing(events):
            async for event in events:
                if not response.prepared:
                    await response.prepare(request)
                await _write(request, response, _data(event))
    except ConnectionError:
        raise
    except Exception as error:
        if not response.prepared:
            raise
        await _write(request, response, _data(api_error(error).body()))
    else:
        await _write(request, response, _DONE)
    await response.write_eof()
    return response


def _data(event: dict[str, Any]) -> bytes:
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not read") from None
