"""Every response carries an id; that of a request that is to be answered is its trace's."""

from __future__ import annotations

from aiohttp import web
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import format_trace_id

from foredraft.telemetry.context import span_context
from gateway.trace import TRACEPARENT_KEY, Trace, start_trace

REQUEST_ID = "x-request-id"
_IDS = RandomIdGenerator()
_KEY = web.RequestKey("trace", Trace)


def begin_trace(request: web.Request) -> Trace:
    """Continue the caller's trace, or begin one."""
    trace = request[_KEY] = start_trace(request.headers.get(TRACEPARENT_KEY))
    return trace


async def name_trace(request: web.Request, response: web.StreamResponse) -> None:
    """Before a response begins."""
    trace = request.get(_KEY)
    response.headers[REQUEST_ID] = _unasked(request) if trace is None else trace.trace_id


def _unasked(request: web.Request) -> str:
    """For what was turned away, or is no request for an answer: it has no trace here."""
    caller = span_context(request.headers.get(TRACEPARENT_KEY))
    return format_trace_id(caller.trace_id if caller.is_valid else _IDS.generate_trace_id())
