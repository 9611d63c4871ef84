"""Spans of a traced part of a test, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from foredraft.telemetry.setup import traced_to

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@contextmanager
def collected(role: str) -> Iterator[InMemorySpanExporter]:
    """Everything that is made inside the block is traced; the exporter keeps the spans."""
    exporter = InMemorySpanExporter()
    with traced_to([SimpleSpanProcessor(exporter)], role):
        yield exporter


def encoded_size(span: ReadableSpan) -> int:
    """Bytes of a span on its way to a collector."""
    wire = encode_spans([span])
    return wire.resource_spans[0].scope_spans[0].spans[0].ByteSize()
