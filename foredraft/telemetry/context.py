"""The W3C trace context as a header, and back."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT = "traceparent"

_PROPAGATOR = TraceContextTextMapPropagator()


def read_parent(traceparent: str | None) -> Context:
    """The context of a header; an empty one if the header is missing or not valid."""
    return _PROPAGATOR.extract({TRACEPARENT: traceparent or ""}, Context())


def write_parent(span: Span) -> str:
    """The header that makes others' spans children of ``span``; empty for an invalid span."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
    return carrier.get(TRACEPARENT, "")


def span_context(traceparent: str | None) -> SpanContext:
    """The span that a header names; not valid if the header is not."""
    return get_current_span(read_parent(traceparent)).get_span_context()
