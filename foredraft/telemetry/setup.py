"""Tracing of one process: off unless a collector or a file is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, SynchronousMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

from foredraft.config import TracingConfig
from foredraft.telemetry.batch import BatchSpans
from foredraft.telemetry.collector import collector_processor
from foredraft.telemetry.file_exporter import FileExporter
from foredraft.telemetry.names import SCHEMA_URL, TRACER

_FILE_DELAY_MS = 500
_FILE_BATCH = 64  # what waits for it waits for a millisecond


@dataclass(frozen=True, slots=True)
class Tracing:
    """What makes spans: ``tracer`` those of requests, ``batch`` those of work for several."""

    tracer: Tracer
    batch: BatchSpans


_current: Tracing | None = None


@contextmanager
def tracing(role: str, config: TracingConfig) -> Iterator[None]:
    """Trace what this process does inside the block; at its end spans are flushed.

    Raises:
        OSError: the trace file cannot be written.
    """
    if not config.on:
        yield
        return
    processors: list[SpanProcessor] = []
    if config.file is not None:
        exporter = FileExporter(config.file, role)
        processors.append(
            BatchSpanProcessor(
                exporter,
                schedule_delay_millis=_FILE_DELAY_MS,
                max_export_batch_size=_FILE_BATCH,
            )
        )
    if config.collector:
        processors.append(collector_processor())
    with traced_to(processors, role):
        yield


@contextmanager
def traced_to(processors: Iterable[SpanProcessor], role: str) -> Iterator[None]:
    """The same, to processors that are there already; they are shut down at the end."""
    global _current
    every = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
    for processor in processors:
        every.add_span_processor(processor)
    resource = Resource.create({"service.name": f"foredraft-{role}"})
    provider = TracerProvider(
        resource=resource, active_span_processor=every, shutdown_on_exit=False
    )
    tracer = provider.get_tracer(TRACER, schema_url=SCHEMA_URL)
    before, _current = _current, Tracing(tracer, BatchSpans(resource, every))
    try:
        yield
    finally:
        _current = before
        provider.shutdown()


def current_tracing() -> Tracing | None:
    """None where tracing is off: asked once per part, so that its steps cost nothing."""
    return _current
