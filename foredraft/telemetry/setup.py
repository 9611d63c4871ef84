"""Tracing of one process: off unless a collector or a file is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from foredraft.config import TracingConfig
from foredraft.telemetry.batch import batch_provider
from foredraft.telemetry.collector import collector_processor
from foredraft.telemetry.file_exporter import FileExporter
from foredraft.telemetry.names import SCHEMA_URL, TRACER

_FILE_DELAY_MS = 500


@contextmanager
def tracing(role: str, config: TracingConfig) -> Iterator[None]:
    """Make `current_tracer` give a tracer inside the block; at its end spans are flushed.

    Raises:
        OSError: the trace file cannot be written.
    """
    if not config.on:
        yield
        return
    provider = batch_provider(Resource.create({"service.name": f"foredraft-{role}"}))
    if config.file is not None:
        exporter = FileExporter(config.file, role)
        provider.add_span_processor(
            BatchSpanProcessor(exporter, schedule_delay_millis=_FILE_DELAY_MS)
        )
    if config.collector:
        provider.add_span_processor(collector_processor())
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def current_tracer() -> trace.Tracer | None:
    """None where tracing is off: asked once per part, so that its steps cost nothing."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        return None
    return provider.get_tracer(TRACER, schema_url=SCHEMA_URL)
