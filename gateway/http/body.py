"""The body of a request: received, decoded and read, while other requests go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aiohttp import web

from foredraft.wire.channel import MAX_REQUEST_BYTES
from gateway.http.errors import HttpFault, encoding_unknown
from gateway.http.fields import Fields
from gateway.http.json_text import parse

T = TypeVar("T")

BODY_SECONDS = 60.0  # a client that sends its request slower than that is not served
_INLINE_BYTES = 32 * 1024  # a larger body takes more than a few milliseconds to decode and read
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})


class Bodies:
    """One for all endpoints, with one thread: several would only fight for the interpreter."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "body")

    async def read(self, request: web.Request, read: Callable[[Fields], T]) -> T:
        """What ``read`` makes of the object that the request holds; it may run in a thread.

        Raises:
            HttpFault: the request holds something else, or too much, or it does not come.
            Exception: what ``read`` raises.
        """
        raw = await _receive(request)
        if len(raw) <= _INLINE_BYTES:
            return read(_fields(raw))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: read(_fields(raw)))


async def _receive(request: web.Request) -> bytes:
    if request.headers.get("Content-Encoding", "").strip().lower() not in _ENCODINGS:
        raise encoding_unknown()
    try:
        if (request.content_length or 0) > MAX_REQUEST_BYTES:
            raise _too_large()
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise HttpFault(408, f"no body within {BODY_SECONDS:g} s", "request_timeout") from None
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None
    except web.RequestPayloadError:
        raise HttpFault(400, "the body cannot be read as it is encoded", "invalid_body") from None


def _too_large() -> HttpFault:
    return HttpFault(413, f"the body has more than {MAX_REQUEST_BYTES} bytes", "request_too_large")


def _fields(raw: bytes) -> Fields:
    try:
        body = parse(raw)
    except (ValueError, RecursionError):
        raise HttpFault(400, "the body is not valid JSON", "invalid_json") from None
    if not isinstance(body, dict):
        raise HttpFault(400, "the body must be a JSON object", "invalid_json")
    return Fields(body)
