"""Server-sent events: begun with the first of them, so that a fault before has its own status."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from gateway.http.errors import api_error

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies must pass events on one by one
}
_DONE = b"data: [DONE]\n\n"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


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
                await response.write(_data(event))
    except ConnectionError:
        raise
    except Exception as error:
        if not response.prepared:
            raise
        await response.write(_data(api_error(error).body()))
    else:
        await response.write(_DONE)
    await response.write_eof()
    return response


def _data(event: dict[str, Any]) -> bytes:
    return f"data: {_encode(event)}\n\n".encode()
