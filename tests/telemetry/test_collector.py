"""A collector that is not there, or never answers, is nobody's trouble."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link

from foredraft.config import TracingConfig, read_tracing
from foredraft.params import InvalidField
from foredraft.telemetry.collector import CollectorProcessor, collector_processor
from foredraft.telemetry.setup import current_tracing, traced_to, tracing

MORE_THAN_THE_QUEUE = 5000


@contextmanager
def refusing() -> Iterator[str]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@contextmanager
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("collector", [refusing, silent])
def test_spans_wait_for_no_collector(collector, monkeypatch, caplog):
    """All spans end at once, the surplus is dropped and counted, and shutting down is quick."""
    with collector() as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        processor = collector_processor()
        ended = threading.Event()

        def work() -> None:
            with traced_to([processor], "gateway"):
                for _ in range(MORE_THAN_THE_QUEUE):
                    current_tracing().tracer.start_span("s").end()
            ended.set()

        with caplog.at_level(logging.INFO):
            threading.Thread(target=work, daemon=True).start()
            assert ended.wait(5), "spans or the end of the process waited for the collector"
    assert processor.lost == MORE_THAN_THE_QUEUE
    texts = [record.getMessage() for record in caplog.records]
    assert texts[-1] == f"{MORE_THAN_THE_QUEUE} of {MORE_THAN_THE_QUEUE} spans were lost"
    assert sum(record.levelno >= logging.WARNING for record in caplog.records) <= 1


class Failing(SpanExporter):
    def export(self, spans):
        return SpanExportResult.FAILURE

    def shutdown(self):
        pass


def test_one_warning_a_minute(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    seconds = [0.0]
    processor = CollectorProcessor(Failing(), clock=lambda: seconds[0])
    with caplog.at_level(logging.WARNING), traced_to([processor], "verify"):
        counts = []
        for now in (0.0, 1.0, 59.0, 60.0, 61.0):
            seconds[0] = now
            current_tracing().tracer.start_span("s").end()
            processor.force_flush()
            counts.append(len(caplog.records))
    assert counts == [1, 1, 1, 2, 2]


def test_off_by_default(monkeypatch):
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert not read_tracing(None).on
    threads = threading.active_count()
    with tracing("gateway", TracingConfig()):
        assert current_tracing() is None and threading.active_count() == threads


@pytest.mark.parametrize(
    ("environment", "collector"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_standard_variables_turn_it_on(environment, collector, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert read_tracing(None) == TracingConfig(collector=collector)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "grpc"),
    ],
)
def test_what_is_not_there_is_refused(name, value, allowed, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317")
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidField, match=f"{name} must be {allowed}"):
        read_tracing(None)


def test_a_file_is_not_left_empty_in_silence(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(InvalidField, match="OTEL_SDK_DISABLED"):
        read_tracing(Path("t.jsonl"))


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans = []

    def Export(self, request, context):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


def test_a_collector_gets_both_kinds_of_spans(monkeypatch):
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    try:
        with tracing("verify", read_tracing(None)):
            current = current_tracing()
            request = current.tracer.start_span("request")
            request.end()
            link = Link(request.get_span_context(), {"tokens": 1})
            current.batch.record("step", [link], 1, 2, {"rows": 1})
    finally:
        server.stop(None)
    request, step = collector.spans
    assert step.trace_id == request.trace_id and not step.parent_span_id
    assert [link.span_id for link in step.links] == [request.span_id]
    assert (step.start_time_unix_nano, step.end_time_unix_nano) == (1, 2)
