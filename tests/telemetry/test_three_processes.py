"""One request through the three real processes leaves one trace that says where the time went."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from pathlib import Path

import pytest
from support.drafting import wait_for_drafting
from support.spans import PARENT, SPAN, TRACE
from support.tiny_models import make_tiny_llama

from foredraft import AsyncClient
from foredraft.cli.main import main
from foredraft.config import StackConfig
from foredraft.params import Schedule
from foredraft.request import GenerateOptions, GenerateRequest, TokenPrompt
from foredraft.supervisor.stack import running_stack
from foredraft.telemetry import names
from foredraft.telemetry.records import SpanRecord, read_requests, read_spans
from foredraft.telemetry.timeline import build_timeline
from foredraft.wire.codec import generate as codec
from foredraft.wire.peers import generate_stub

TOKENS = 200
PROMPT = tuple(range(5, 60))


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory) -> Path:
    """What a stack has written for one request with a caller's trace and two beside each other.

    A collector that accepts and never answers is named, too: nothing may depend on it.
    """
    folder = tmp_path_factory.mktemp("traced")
    model = make_tiny_llama(folder / "model", seed=1)
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        asyncio.run(_serve(model, folder / "trace.jsonl"))
    return folder / "trace.jsonl"


async def _serve(model: Path, file: Path) -> None:
    config = StackConfig("127.0.0.1", 0, model, draft=model, log_level="warning", trace_file=file)
    options = GenerateOptions(max_tokens=TOKENS, ignore_eos=True, seed=1)
    async with running_stack(config) as running:
        await running.ready()
        async with AsyncClient(running.local_address) as client:
            await wait_for_drafting(client)
            wire = codec.encode_request(GenerateRequest(TokenPrompt(PROMPT), options))
            stub = generate_stub(client._channel)
            result = codec.decode_result(
                await stub.Generate(wire, metadata=(("traceparent", PARENT),))
            )
            assert len(result.token_ids) == TOKENS
            plain = {"max_tokens": TOKENS, "ignore_eos": True, "speculation": "off"}
            await asyncio.gather(*(client.generate(list(PROMPT), **plain) for _ in range(2)))


def linked(spans: list[SpanRecord], name: str, to: SpanRecord) -> list[SpanRecord]:
    return [span for span in spans if span.name == name and span.link_to(to.span_id)]


def test_one_trace_from_the_caller_through_all_processes(trace_file):
    spans = read_spans(trace_file, TRACE)
    mine = [span for span in spans if span.trace_id == TRACE]
    (request,) = [span for span in mine if span.is_request]
    assert {span.role for span in mine} == {"gateway", "verify", "draft"}
    assert request.parent_id == SPAN
    ids = {span.span_id for span in mine} | {SPAN}
    assert all(span.parent_id in ids for span in mine if span.parent_id)

    children = [span for span in mine if span.parent_id == request.span_id]
    assert Counter(span.name for span in children) == {
        names.VERIFY_SEQUENCE: 1,
        names.DRAFT_SEQUENCE: 1,
    }
    rest = [span for span in mine if span is not request and span not in children]
    assert all(not span.parent_id and span.link_to(request.span_id) for span in rest)

    steps = linked(spans, names.VERIFY_STEP, request)
    rounds = linked(spans, names.DRAFT_WORK, request)
    assert len(steps) == request.attributes[names.STEPS] and rounds
    tokens = [step.link_to(request.span_id).attributes[names.LINK_TOKENS] for step in steps]
    assert sum(tokens) == TOKENS
    # A step or round that served another request, too, may be of that one's trace.
    own = [span for span in (*steps, *rounds) if span.trace_id == TRACE]
    assert len(mine) == 3 + len(own) and own


def test_requests_beside_each_other_share_steps(trace_file):
    first, second = read_requests(trace_file)[-2:]
    assert first.trace_id != second.trace_id
    spans = read_spans(trace_file, first.trace_id) + read_spans(trace_file, second.trace_id)
    shared = [
        span for span in spans if span.link_to(first.span_id) and span.link_to(second.span_id)
    ]
    assert shared and all(span.attributes[names.SEQUENCES] == 2 for span in shared)


def test_the_timeline_names_where_the_time_went(trace_file):
    for request in read_requests(trace_file):
        timeline = build_timeline(request, read_spans(trace_file, request.trace_id))
        assert timeline.missing == 0
        assert abs(timeline.unaccounted) <= 0.05 * timeline.seconds
        assert {row.name for row in timeline.rows if row.seconds} >= {"gateway", "verify"}


def test_the_steps_explain_the_time_at_the_target(trace_file):
    """What the sequence's span says is what the steps' spans say one by one."""
    (request,) = [span for span in read_requests(trace_file) if span.trace_id == TRACE]
    spans = read_spans(trace_file, TRACE)
    (sequence,) = [span for span in spans if span.name == names.VERIFY_SEQUENCE]
    steps = linked(spans, names.VERIFY_STEP, request)
    held = sum(step.attributes[names.HELD_US] for step in steps)
    assert sequence.attributes[names.HELD_US] == pytest.approx(held, abs=len(steps))
    computed = sum(
        step.attributes[name]
        for step in steps
        for name in (names.PREPARE_US, names.FORWARD_US, names.SAMPLE_US, names.COMMIT_US)
    )
    assert computed <= sequence.attributes[names.VERIFY_US] + 2 * len(steps)


def test_no_text_and_no_token_ids(trace_file):
    for span in read_spans(trace_file, TRACE):
        values = [*span.attributes.values()]
        values += [value for event in span.events for value in event.attributes.values()]
        values += [value for link in span.links for value in link.attributes.values()]
        assert all(isinstance(value, int | float) or value in KNOWN for value in _flat(values))


def _flat(values):
    for value in values:
        yield from _flat(value) if isinstance(value, list) else (value,)


SCHEDULES = {schedule.name.lower() for schedule in Schedule}
KNOWN = {names.TEXT_COMPLETION, names.PROVIDER, "model", "length", *SCHEDULES}


def test_the_command_draws_it(trace_file, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["trace", str(trace_file), "--request", TRACE, "--html", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    drawn = [line.split()[0] for line in lines if "%" in line]
    assert drawn[:4] == ["draft", "gateway", "hop", "prefill"]
    assert drawn[-2:] == ["unaccounted", "total"] and "█" in "".join(lines)
    html = page.read_text()
    assert "http" not in html and "src=" not in html and html.count("<rect") > 50

    assert main(["trace", str(trace_file)]) == 0
    assert TRACE in capsys.readouterr().out
