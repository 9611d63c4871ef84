"""The SDK's span: only where the program has set up OpenTelemetry, and always in its trace."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, use_span
from support.fakes import FakeVerify, Round, gateway, identity, worker
from support.spans import PARENT, TRACE
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient, InvalidRequest
from foredraft.params import FinishReason
from foredraft.telemetry import names
from foredraft.telemetry.call import CallSpan
from foredraft.telemetry.context import span_context
from foredraft.tokenizer_hash import tokenizer_identity


@pytest.fixture
def exporter(monkeypatch) -> InMemorySpanExporter:
    """As in a program that has set up OpenTelemetry."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return kept


def test_nothing_without_opentelemetry():
    assert CallSpan(chat=False, model="").metadata == ()


def test_a_context_is_passed_on_without_a_span_of_our_own():
    with use_span(NonRecordingSpan(span_context(PARENT))):
        assert CallSpan(chat=False, model="").metadata == (("traceparent", PARENT),)


@pytest.mark.asyncio
async def test_the_whole_way(exporter, tmp_path):
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    known = tokenizer_identity(model)
    end = Round((10,), finish=FinishReason.LENGTH)
    verify = FakeVerify(identity(known.hash, known.vocab_size), [end])
    async with (
        worker(verify, "127.0.0.1:0") as address,
        gateway(model, address) as running,
        AsyncClient(running.address) as client,
    ):
        with use_span(NonRecordingSpan(span_context(PARENT))):
            whole = await client.generate("hello", model="tiny")
            stream = client.stream(messages=[{"role": "user", "content": "hello"}])
        async for _ in stream:
            pass
        with pytest.raises(InvalidRequest):
            await client.generate("hello", model="other")
    called, streamed, refused = exporter.get_finished_spans()
    assert whole.trace_id == stream.result.trace_id == TRACE
    assert [span.name for span in (called, streamed)] == ["text_completion tiny", "chat"]
    for span, opened in zip((called, streamed), verify.opened, strict=True):
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.context.span_id:016x}" in opened.traceparent
        assert span.attributes[names.USAGE_OUTPUT_TOKENS] == 1
        assert span.attributes[names.RESPONSE_FINISH_REASONS] == ("length",)
    assert refused.attributes[names.ERROR_TYPE] == "InvalidRequest"
    assert not refused.status.is_ok
