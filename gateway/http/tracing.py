"""Every HTTP request has a trace id, which its response carries."""

from __future__ import annotations

from aiohttp import web

from gateway.http.errors import Handler
from gateway.trace import TRACEPARENT_KEY, Trace, start_trace

REQUEST_ID = "x-request-id"
_KEY = web.RequestKey("trace", Trace)


@web.middleware
async def start_traces(request: web.Request, handler: Handler) -> web.StreamResponse:
    request[_KEY] = start_trace(request.headers.get(TRACEPARENT_KEY))
    return await handler(request)


def trace_of(request: web.Request) -> Trace:
    return request[_KEY]


async def name_trace(request: web.Request, response: web.StreamResponse) -> None:
    """Before a response begins."""
    if _KEY in request:
        response.headers[REQUEST_ID] = trace_of(request).trace_id
