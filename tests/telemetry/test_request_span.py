"""A request's span at the gateway: bounded, without texts, and the workers' parent."""

from __future__ import annotations

import contextlib
import time
from collections import Counter

import pytest
from support.fakes import FakeVerify, Round, gateway, identity, worker
from support.http_door import door
from support.spans import PARENT, SPAN, TRACE, collected, encoded_size
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient, InvalidRequest
from foredraft.params import FinishReason, SamplingParams, Speculation
from foredraft.request import GenerateRequest, TextPrompt
from foredraft.results import Stats
from foredraft.telemetry import names
from foredraft.telemetry.setup import current_tracing
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.codec import generate as codec
from foredraft.wire.errors import Unavailable
from foredraft.wire.messages import Commit, StepResult, StepTimings
from foredraft.wire.peers import generate_stub
from gateway.plan import Plan
from gateway.trace import RecordedTrace

TOKENS = 2000
SECRET = "zebra"
ASKED = GenerateRequest(TextPrompt("x"))
REASONS = names.RESPONSE_FINISH_REASONS
DAYS_SECONDS = 1e6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"), 259)


def plan(choice: int = 0, seed: int = 0) -> Plan:
    return Plan((1, 2, 3), SamplingParams(seed=seed), (), Speculation.AUTO, choice)


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
    assert 16 <= len(steps) <= len(span.events) <= 128
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
        huge, now = 10**9, time.perf_counter()
        for choice in range(128):
            trace.opened(plan(choice=choice, seed=2**63 - 1), "m" * 100, 2**31)
        for number in range(1000):
            # Each target is lost after a hundred steps.
            commit = Commit(huge, 2**31 + number // 100, 1, tuple(range(64)))
            step = StepResult(huge + number, (commit,), StepTimings(huge, huge, huge, huge, huge))
            trace.stepped(step, commit, now - DAYS_SECONDS + number)
        for choice in range(128):
            reason = (FinishReason.STOP, FinishReason.LENGTH, None)[choice % 3]
            trace.finished(reason, Stats(huge, 1.5, [huge], huge, huge, huge, huge))
        with pytest.raises(Unavailable), trace.running(ASKED):
            raise Unavailable("lost", 1.0)
    (made,) = exporter.get_finished_spans()
    assert made.attributes[names.CHOICES] == 128 and len(made.attributes[REASONS]) <= 16
    assert made.attributes[names.FINISHES + "cancelled"] == 42
    assert sum(event.name == names.SILENCE for event in made.events) >= 6
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


def events_of(span, name: str) -> list[dict]:
    return [dict(event.attributes) for event in span.events if event.name == name]


def test_choices_share_events():
    """Nothing is on the span once for every choice; tokens and prompts are sums."""
    with collected("gateway") as exporter:
        trace = RecordedTrace("0" * 32, current_tracing().tracer.start_span("many"))
        timings = StepTimings(held_us=10, forward_us=100)
        with trace.running(ASKED):
            for choice in range(100):
                trace.opened(plan(choice), "tiny", 1)
            trace.opened(plan(), "tiny", 1)  # of a second prompt
            for number in (1, 2):
                commits = tuple(Commit(seq_id, 1, 1, (5, 6)) for seq_id in range(1, 102))
                arrived = time.perf_counter()
                for commit in commits:
                    trace.stepped(StepResult(number, commits, timings), commit, arrived)
            for _ in range(101):
                trace.finished(FinishReason.LENGTH, Stats(steps=2))
    (span,) = exporter.get_finished_spans()
    counts = Counter(event.name for event in span.events)
    assert counts == {names.OPENED: 1, names.STEP: 2, names.FINISHED: 1}
    assert [event["tokens"] for event in events_of(span, names.STEP)] == [202, 202]
    assert (span.attributes[names.FORWARD_US], span.attributes[names.HELD_US]) == (200, 20)
    assert span.attributes[names.USAGE_INPUT_TOKENS] == 6
    assert span.attributes[names.STEPS] == 202


def test_a_silence_says_what_was_heard_before_it():
    with collected("gateway") as exporter:
        trace = RecordedTrace("0" * 32, current_tracing().tracer.start_span("lost"))
        timings = StepTimings(held_us=100_000, prepare_us=1000, forward_us=200_000, sample_us=9000)
        with trace.running(ASKED):
            trace.opened(plan(), "tiny", 4)
            began = time.perf_counter()
            for incarnation, at in ((4, 1.0), (4, 2.0), (5, 12.31), (5, 13.0)):
                commit = Commit(7, incarnation, 1, (5,))
                trace.stepped(StepResult(1, (commit,), timings), commit, began + at)
            trace.finished(FinishReason.STOP, Stats())
    (span,) = exporter.get_finished_spans()
    (silence,) = events_of(span, names.SILENCE)
    near = pytest.approx(10_000_000, abs=1)
    assert silence == {
        names.SILENCE_US: near,
        names.HEARD_INCARNATION: 4,
        names.HEARD_STEPS: 2,
        names.HEARD_VERIFY_US: 420_000,
        names.HEARD_HELD_US: 200_000,
        names.HEARD_WAIT_US: pytest.approx(1_380_000, abs=100_000),
    }
    assert span.attributes[names.SEQUENCE] == 7


@pytest.mark.parametrize(
    ("error", "seconds", "told"),
    [(Unavailable("lost", 1.0), 0.0, True), (None, 5.0, True), (None, 0.5, False)],
)
def test_a_silence_at_the_end(error, seconds, told):
    """A request that fails for want of a target has one, a client that left after one, too."""
    with collected("gateway") as exporter:
        trace = RecordedTrace("0" * 32, current_tracing().tracer.start_span("lost"))
        with contextlib.suppress(Unavailable), trace.running(ASKED):
            trace.opened(plan(), "tiny", 1)
            commit = Commit(7, 1, 1, (5,))
            step = StepResult(1, (commit,), StepTimings())
            trace.stepped(step, commit, time.perf_counter() - seconds)
            trace.finished(None, Stats())
            if error is not None:
                raise error
    (span,) = exporter.get_finished_spans()
    assert len(events_of(span, names.SILENCE)) == told
