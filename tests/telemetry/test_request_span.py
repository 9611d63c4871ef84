"""A request's span at the gateway: bounded, without texts, and the workers' parent."""

from __future__ import annotations

import pytest
from support.fakes import FakeVerify, Round, gateway, identity, worker
from support.http_door import door
from support.spans import PARENT, SPAN, TRACE, collected, encoded_size
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient, InvalidRequest
from foredraft.params import FinishReason
from foredraft.request import GenerateRequest, TextPrompt
from foredraft.results import Stats
from foredraft.telemetry import names
from foredraft.telemetry.setup import current_tracing
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.codec import generate as codec
from foredraft.wire.messages import Commit, StepResult, StepTimings
from foredraft.wire.peers import generate_stub
from gateway.trace import RecordedTrace

TOKENS = 2000
SECRET = "zebra"
ASKED = GenerateRequest(TextPrompt("x"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"), 259)


def long_answer(model) -> FakeVerify:
    made = tokenizer_identity(model)
    rounds = [Round((10,), verified=3)] * (TOKENS - 1) + [
        Round((11,), verified=3, finish=FinishReason.LENGTH)
    ]
    return FakeVerify(identity(made.hash, made.vocab_size, context=4096), rounds)


@pytest.mark.asyncio
async def test_a_long_answer_has_a_small_span(model):
    verify = long_answer(model)
    with collected("gateway") as exporter:
        async with (
            worker(verify, "127.0.0.1:0") as address,
            gateway(model, address) as running,
            AsyncClient(running.address) as client,
        ):
            result = await client.generate(SECRET, max_tokens=TOKENS, stop=["quagga"])
    (span,) = exporter.get_finished_spans()
    assert len(result.token_ids) == TOKENS
    assert span.parent is None and f"{span.context.trace_id:032x}" == result.trace_id
    assert f"00-{result.trace_id}-{span.context.span_id:016x}-" in verify.opened[0].traceparent
    steps = [event for event in span.events if event.name == names.STEP]
    assert 20 <= len(steps) <= len(span.events) <= 128
    assert span.attributes[names.STEPS] == TOKENS
    assert span.attributes[names.VERIFIED_NODES] == 3 * TOKENS
    assert span.attributes[names.USAGE_OUTPUT_TOKENS] == TOKENS
    assert span.attributes[names.RESPONSE_FINISH_REASONS] == ("length",)
    assert encoded_size(span) < 8192
    assert SECRET not in span.to_json() and "quagga" not in span.to_json()
    assert result.text not in span.to_json()


def test_the_largest_span_is_small():
    """Every number as large as it can become in days."""
    with collected("gateway") as exporter:
        trace = RecordedTrace("0" * 32, current_tracing().tracer.start_span("long"))
        huge = 10**9
        commit = Commit(1, 1, 1, tuple(range(64)))
        for number in range(1000):
            step = StepResult(huge + number, (commit,), StepTimings(huge, huge, huge, huge, huge))
            trace.stepped(step, commit, -float(huge))
        trace.finished(FinishReason.STOP, Stats(huge, 1.5, [huge], huge, huge, huge, huge))
        with trace.running(ASKED):
            pass
    (made,) = exporter.get_finished_spans()
    assert encoded_size(made) < 8192


@pytest.mark.asyncio
async def test_a_callers_trace_goes_on_and_a_refusal_is_told(model):
    verify = long_answer(model)
    with collected("gateway") as exporter:
        async with (
            worker(verify, "127.0.0.1:0") as address,
            gateway(model, address) as running,
            AsyncClient(running.address) as client,
        ):
            stub = generate_stub(client._channel)
            wire = codec.encode_request(ASKED)
            await stub.Generate(wire, metadata=(("traceparent", PARENT),))
            not_kept = PARENT[:-1] + "0"
            await stub.Generate(wire, metadata=(("traceparent", not_kept),))
            with pytest.raises(InvalidRequest):
                await client.generate("x" * 5000)
    answered, refused = exporter.get_finished_spans()
    assert f"{answered.context.trace_id:032x}" == TRACE
    assert f"{answered.parent.span_id:016x}" == SPAN
    assert TRACE in verify.opened[1].traceparent and verify.opened[1].traceparent.endswith("-00")
    assert refused.attributes[names.ERROR_TYPE] == "InvalidField"
    assert not refused.status.is_ok and not refused.events


@pytest.mark.asyncio
async def test_an_http_request_has_one_span_for_all_its_choices(model):
    rounds = [Round((10, 11)), Round((12,), finish=FinishReason.LENGTH)]
    with collected("gateway") as exporter:
        async with door(model, rounds) as opened:
            answer = await opened.client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": SECRET}],
                n=2,
                extra_headers={"traceparent": PARENT},
            )
            await opened.client.models.list()
    (span,) = exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == SPAN
    assert span.name == "chat tiny" and len(answer.choices) == 2
    assert span.attributes[names.STEPS] == 4 and span.attributes[names.USAGE_OUTPUT_TOKENS] == 6
    assert span.attributes[names.RESPONSE_FINISH_REASONS] == ("length", "length")
    assert SECRET not in span.to_json()
