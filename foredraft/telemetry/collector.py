"""Spans to an OTLP collector that may be slow, silent or not there.

Nothing waits for it: spans go through a bounded queue, what does not fit is dropped and counted,
a warning is logged at most once a minute, and shutting down takes two seconds at most.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

FLUSH_SECONDS = 2.0
WARNING_SECONDS = 60.0

# They warn at every retry and every dropped span; `CollectorProcessor` says it once a minute.
_NOISY = ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal")

log = logging.getLogger(__name__)


def collector_processor() -> CollectorProcessor:
    """For the collector that OTEL_EXPORTER_OTLP_* names."""
    # Imported here: it takes a while, and most processes are not traced.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return CollectorProcessor(OTLPSpanExporter())


class CollectorProcessor(BatchSpanProcessor):
    """OTEL_BSP_* sets its queue (2,048 spans) and how often it is emptied."""

    def __init__(self, exporter: SpanExporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._counter = _Counter(exporter, clock)
        super().__init__(self._counter)

    @property
    def lost(self) -> int:
        """Spans that ended and did not get to the collector; exact after `shutdown`."""
        return self._counter.ended - self._counter.delivered

    def on_end(self, span: ReadableSpan) -> None:
        self._counter.ended += 1
        super().on_end(span)

    def shutdown(self) -> None:
        """Send what waits, for at most FLUSH_SECONDS."""
        cut = threading.Timer(FLUSH_SECONDS, self._counter.shutdown)
        cut.daemon = True
        cut.start()
        super().shutdown()  # type: ignore[no-untyped-call]
        cut.cancel()
        if self.lost:
            log.info("%d of %d spans were lost", self.lost, self._counter.ended)


class _Counter(SpanExporter):
    """Passes batches on and counts what becomes of them."""

    def __init__(self, exporter: SpanExporter, clock: Callable[[], float]) -> None:
        self._exporter = exporter
        self._clock = clock
        self._warned = float("-inf")
        self._closed = threading.Lock()
        self.ended = 0
        self.delivered = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.delivered += len(spans)
        elif self._clock() - self._warned >= WARNING_SECONDS:
            self._warned = self._clock()
            missing = self.ended - self.delivered
            log.warning("the trace collector does not answer: %d spans are not there yet", missing)
        return result

    def shutdown(self) -> None:
        """Once only: the timer and the processor may both come."""
        if self._closed.acquire(blocking=False):
            self._exporter.shutdown()
