"""A request that is to be answered has a trace id, which its response carries, errors included."""

from __future__ import annotations

from aiohttp import web

from gateway.trace import TRACEPARENT_KEY, Trace, start_trace

REQUEST_ID = "x-request-id"
_KEY = web.RequestKey("trace", Trace)


def begin_trace(request: web.Request) -> Trace:
    """Continue the caller's trace, or begin one."""
    trace = request[_KEY] = start_trace(request.headers.get(TRACEPARENT_KEY))
    return trace


async def name_trace(request: web.Request, response: web.StreamResponse) -> None:
    """Before a response begins."""
    trace = request.get(_KEY)
    if trace is not None:
        response.headers[REQUEST_ID] = trace.trace_id
