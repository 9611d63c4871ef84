"""A target is lost in the middle of an answer: the trace tells of the time without one."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from support.fakes import FakeVerify, Round, gateway, identity, until, worker
from support.spans import collected
from support.tiny_models import make_tiny_llama, make_tiny_tokenizer

from foredraft import AsyncClient
from foredraft.config import FakeEngine, StackConfig
from foredraft.params import FinishReason
from foredraft.supervisor.stack import running_stack
from foredraft.telemetry import names
from foredraft.telemetry.records import read_requests, read_spans
from foredraft.telemetry.timeline import build_timeline
from foredraft.tokenizer_hash import tokenizer_identity

STROKES = (signal.SIGTERM, signal.SIGKILL)
ANSWERS = 2


@pytest.mark.asyncio
async def test_a_target_that_was_lost_before_its_first_step_is_noted(tmp_path):
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    made = tokenizer_identity(model)
    known = identity(made.hash, made.vocab_size)
    first = FakeVerify(known)
    second = FakeVerify(known, [Round((11,), finish=FinishReason.STOP)])
    address = f"unix:{tmp_path}/verify"
    with collected("gateway") as exporter:
        async with (
            gateway(model, address, ready=False) as running,
            AsyncClient(running.address) as client,
        ):
            async with worker(first, address):
                await until(lambda: running.relay.ready)
                answer = asyncio.create_task(client.generate("hello"))
                await until(lambda: first.opened)
            async with worker(second, address):
                await answer
    (span,) = exporter.get_finished_spans()
    [silence] = [event for event in span.events if event.name == names.SILENCE]
    assert silence.attributes[names.HEARD_INCARNATION] == first.opened[0].incarnation
    assert silence.attributes[names.HEARD_STEPS] == 0
    [opened] = [event for event in span.events if event.name == names.OPENED]
    assert abs(silence.timestamp - opened.timestamp) < 10**8


@pytest.mark.asyncio
async def test_the_gateway_notes_what_it_heard_of_a_lost_target(tmp_path):
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    made = tokenizer_identity(model)
    known = identity(made.hash, made.vocab_size)
    first, second = FakeVerify(known), FakeVerify(known)
    address = f"unix:{tmp_path}/verify"
    with collected("gateway") as exporter:
        async with (
            gateway(model, address, ready=False) as running,
            AsyncClient(running.address) as client,
        ):
            async with worker(first, address):
                await until(lambda: running.relay.ready)
                deltas = aiter(client.stream("hello"))
                reading = asyncio.ensure_future(anext(deltas))
                await until(lambda: first.opened)
                [seq_id] = first.live
                first.commit(seq_id, Round((10,)))
                await reading
            async with worker(second, address):
                await until(lambda: second.opened)
                second.commit(seq_id, Round((11,), finish=FinishReason.STOP))
                async for _ in deltas:
                    pass
    (span,) = exporter.get_finished_spans()
    [silence] = [event for event in span.events if event.name == names.SILENCE]
    assert silence.attributes[names.HEARD_INCARNATION] == first.opened[0].incarnation
    assert silence.attributes[names.HEARD_STEPS] == 1
    assert span.attributes[names.SEQUENCE] == seq_id


@pytest.mark.slow
def test_where_the_time_went_when_a_worker_ended(tmp_path):
    file = tmp_path / "trace.jsonl"
    model = make_tiny_llama(tmp_path / "model", seed=1)
    asyncio.run(_lose_twice(model, file))
    requests = read_requests(file)
    assert len(requests) == ANSWERS * len(STROKES)
    for request, stroke in zip(requests, [s for s in STROKES for _ in range(ANSWERS)], strict=True):
        timeline = build_timeline(request, read_spans(file, request.trace_id))
        assert abs(timeline.unaccounted) <= 0.05 * timeline.seconds
        shares = {row.name: row.seconds / timeline.seconds for row in timeline.rows}
        assert shares["lost"] > 0.2 and shares["verify"] > 0.05
        assert ("untold" in shares) == (stroke is signal.SIGKILL)


async def _lose_twice(model: Path, file: Path) -> None:
    config = StackConfig(
        "127.0.0.1",
        0,
        model,
        fake_target=FakeEngine(20.0),
        fake_draft=FakeEngine(1.0, 0.8),
        log_level="error",
        trace_file=file,
    )
    options = {"max_tokens": 200, "ignore_eos": True}
    async with running_stack(config) as running:
        await running.ready()
        async with AsyncClient(running.local_address) as client:
            for stroke in STROKES:
                streams = [client.stream([5] * 50, **options) for _ in range(ANSWERS)]
                read = asyncio.gather(*(_read(stream) for stream in streams))
                await asyncio.sleep(1.0)
                os.kill(running.pids()["verify"], stroke)
                await read


async def _read(stream) -> None:
    async for _ in stream:
        pass
