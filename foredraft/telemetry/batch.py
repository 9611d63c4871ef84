"""Spans of work that serves several requests at once.

Such a span is no request's child: it is linked to all that it served. It has no parent, yet it is
put into the trace of the first of them, so that a request that is served alone has one trace.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, Tracer, TraceState, get_current_span
from opentelemetry.util.types import Attributes

MOST_LINKS = 96  # a span stays below 8 KB

_JOINED = threading.local()


class BatchIds(RandomIdGenerator):
    """Random ids; a batch span gets the trace id that was chosen for it."""

    def generate_trace_id(self) -> int:
        chosen: int = getattr(_JOINED, "trace_id", 0)
        return chosen or super().generate_trace_id()


class BatchSampler(Sampler):
    """Keeps a root span that has links if a linked span is kept; asks ``inner`` for all others."""

    def __init__(self, inner: Sampler) -> None:
        self._inner = inner

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        if links and not get_current_span(parent_context).get_span_context().is_valid:
            kept = any(link.context.trace_flags.sampled for link in links)
            return SamplingResult(Decision.RECORD_AND_SAMPLE if kept else Decision.DROP, attributes)
        return self._inner.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        return f"BatchSampler({self._inner.get_description()})"


def batch_provider(resource: Resource | None = None) -> TracerProvider:
    """A provider whose tracers can make batch spans; everything else as OTEL_* says."""
    provider = TracerProvider(resource=resource, id_generator=BatchIds(), shutdown_on_exit=False)
    provider.sampler = BatchSampler(provider.sampler)
    return provider


def record_batch(
    tracer: Tracer, name: str, links: Sequence[Link], began: int, ended: int, attributes: Attributes
) -> None:
    """A whole span at once; ``began`` and ``ended`` are nanoseconds since the epoch."""
    _JOINED.trace_id = links[0].context.trace_id
    try:
        span = tracer.start_span(
            name, Context(), attributes=attributes, links=links[:MOST_LINKS], start_time=began
        )
    finally:
        _JOINED.trace_id = 0
    span.end(ended)
