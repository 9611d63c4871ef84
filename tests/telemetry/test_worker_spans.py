"""Steps and drafting serve several requests: they are linked to them, not their children."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from support.spans import PARENT, SPAN, TRACE, collected, encoded_size

from draft_service.answers import Answer, Drafts
from draft_service.trace import DraftTrace
from foredraft.params import FinishReason, SamplingParams
from foredraft.telemetry import names
from foredraft.telemetry.setup import current_tracing
from foredraft.wire.messages import (
    CloseSequence,
    CloseSequences,
    Commit,
    DraftBudget,
    DraftTimings,
    Nack,
    NodeBatch,
    NodeGroup,
    OpenSequence,
    OpenSequences,
    SequenceError,
    Source,
    StepTimings,
    VerifyBudget,
)
from verify_service.trace import Step, StepTrace

STREAM = 3
TIMINGS = StepTimings(
    held_us=500, prepare_us=10, forward_us=2000, sample_us=100, commit_us=20, period_us=2700
)


def opening(seq_id: int, traceparent: str) -> OpenSequences:
    made = OpenSequence(seq_id, 1, (1, 2, 3), SamplingParams(), traceparent=traceparent)
    return OpenSequences((made,))


def parent(number: int, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


def step(commits: Sequence[Commit], number: int = 1) -> Step:
    return Step(
        number=number,
        timings=TIMINGS,
        commits=[((STREAM, commit.seq_id), commit) for commit in commits],
        rows=4 * len(commits),
        budget=VerifyBudget(64, 20_000, True),
        hold_limit_us=5000,
        waited_for=1,
        preempted=2,
    )


def commit(seq_id: int, finish: FinishReason | None = None) -> Commit:
    return Commit(seq_id, 1, 5, (7, 8), verified=3, accepted=1, finish=finish)


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def at_once(work: Callable[[], None]) -> None:
    """In place of an event loop."""
    work()


def test_a_step_is_linked_to_the_requests_that_it_served():
    with collected("verify") as exporter:
        trace = StepTrace(current_tracing(), at_once)
        for number, flags in ((1, "01"), (2, "00"), (3, "01"), (4, "01")):
            trace.received(STREAM, opening(number, parent(number, flags)))
        trace.stepped(time.perf_counter(), step([commit(1), commit(2), commit(3)]))
        trace.stepped(time.perf_counter(), step([commit(2)]))
        trace.received(STREAM, None)
    (span,) = named(exporter.get_finished_spans(), names.VERIFY_STEP)
    assert [link.context.span_id for link in span.links] == [1, 3]
    assert span.parent is None and span.context.trace_id == 1
    assert span.attributes[names.SEQUENCES] == 3 and span.attributes[names.NODES] == 9
    assert span.attributes[names.FORWARD_US] == 2000 and span.attributes[names.HELD_US] == 500
    assert span.attributes[names.PERIOD_US] == 2700
    assert span.attributes[names.HOLD_LIMIT_US] == 5000 and span.attributes[names.PREEMPTED] == 2
    assert dict(span.links[0].attributes) == {"tokens": 2, "nodes": 3, "accepted": 1}


def test_a_sequence_is_a_child_and_knows_where_its_time_went():
    with collected("verify") as exporter:
        trace = StepTrace(current_tracing(), at_once)
        trace.received(STREAM, opening(1, PARENT))
        trace.received(STREAM, opening(2, parent(2)))
        began = time.perf_counter()
        time.sleep(0.002)
        trace.prefilled((STREAM, 1), began, True)
        for number, finish in ((1, None), (2, FinishReason.LENGTH)):
            began = time.perf_counter()
            time.sleep(0.003)
            trace.stepped(began, step([commit(1, finish)], number))
        trace.received(STREAM, CloseSequences((CloseSequence(2, 1), CloseSequence(9, 1))))
    mine, other = named(exporter.get_finished_spans(), names.VERIFY_SEQUENCE)
    assert f"{mine.context.trace_id:032x}" == TRACE and f"{mine.parent.span_id:016x}" == SPAN
    assert mine.attributes[names.STEPS] == 2 and other.attributes[names.STEPS] == 0
    assert mine.attributes[names.PREFILL_US] >= 2000 and mine.attributes[names.HELD_US] == 1000
    assert mine.attributes[names.VERIFY_US] >= 3000
    # The other one waited for all that was done for the first.
    spent = mine.attributes[names.PREFILL_US] + mine.attributes[names.VERIFY_US]
    assert other.attributes[names.OTHERS_US] >= spent
    assert other.attributes[names.PREFILL_US] == other.attributes[names.VERIFY_US] == 0


def test_steps_are_told_some_at_a_time_and_before_a_sequence_ends():
    with collected("verify") as exporter:
        trace = StepTrace(current_tracing(), at_once)
        trace.received(STREAM, opening(1, parent(1)))
        trace.received(STREAM, opening(2, parent(2)))
        told = []
        for number in range(1, 101):
            trace.stepped(time.perf_counter(), step([commit(1), commit(2)], number))
            told.append(len(exporter.get_finished_spans()))
        trace.received(STREAM, CloseSequences((CloseSequence(1, 1),)))
        assert len(named(exporter.get_finished_spans(), names.VERIFY_STEP)) == 100
        trace.stepped(time.perf_counter(), step([commit(2, FinishReason.LENGTH)], 101))
    assert len(set(told)) < 10 and max(told) > 80
    spans = exporter.get_finished_spans()
    steps = named(spans, names.VERIFY_STEP)
    assert [span.attributes[names.STEP_INDEX] for span in steps] == list(range(1, 102))
    assert [len(span.links) for span in steps] == [2] * 100 + [1]
    first, second = named(spans, names.VERIFY_SEQUENCE)
    assert (first.attributes[names.STEPS], second.attributes[names.STEPS]) == (100, 101)
    assert first.end_time >= steps[99].end_time


def test_the_engine_only_notes_what_it_did():
    """All else is left to the event loop, in the order in which it happened."""
    later: list[Callable[[], None]] = []
    with collected("verify") as exporter:
        trace = StepTrace(current_tracing(), later.append)
        trace.received(STREAM, opening(1, parent(1)))
        trace.received(STREAM, opening(2, parent(2)))
        trace.prefilled((STREAM, 1), time.perf_counter(), True)
        trace.stepped(time.perf_counter(), step([commit(1)], 1))
        assert not later
        trace.stepped(time.perf_counter(), step([commit(1, FinishReason.LENGTH)], 2))
        trace.refused([(STREAM, 2)])
        assert not exporter.get_finished_spans()
        for work in later:
            work()
        spans = exporter.get_finished_spans()
    first, second = named(spans, names.VERIFY_SEQUENCE)
    assert (first.attributes[names.STEPS], second.attributes[names.STEPS]) == (2, 0)
    assert [event.name for event in first.events] == [names.PREFILLED]
    assert first.events[0].timestamp < first.end_time <= second.end_time


def test_streams_and_incarnations_are_told_apart():
    with collected("verify") as exporter:
        trace = StepTrace(current_tracing(), at_once)
        trace.received(STREAM, opening(1, parent(1)))
        trace.received(STREAM + 1, opening(1, parent(2)))
        late = Commit(1, 2, 5, (7,))
        trace.stepped(time.perf_counter(), step([late]))
        trace.received(STREAM, opening(1, parent(3)))
        trace.received(STREAM, None)
        assert len(exporter.get_finished_spans()) == 2
        trace.received(STREAM + 1, None)
    ended = [span.context.trace_id for span in exporter.get_finished_spans()]
    assert ended == [1, 3, 2]


def test_a_wide_step_is_small():
    with collected("verify") as exporter:
        trace = StepTrace(current_tracing(), at_once)
        for number in range(1, 257):
            trace.received(STREAM, opening(number, parent(number)))
        trace.stepped(time.perf_counter(), step([commit(number) for number in range(1, 257)]))
        trace.received(STREAM, None)
    (span,) = named(exporter.get_finished_spans(), names.VERIFY_STEP)
    assert span.attributes[names.SEQUENCES] == 256 and len(span.links) < 128
    assert encoded_size(span) < 8192


def drafted(seq_id: int, nodes: int, complete: bool, passes: int, root: int = 0) -> Answer:
    group = NodeGroup(
        seq_id,
        1,
        root,
        complete,
        tuple(range(nodes)),
        (0,) * nodes,
        (0.5,) * nodes,
        (Source.MODEL,) * nodes,
    )
    batch = NodeBatch((group,))
    return Answer(STREAM, Drafts({0: batch}, DraftTimings(10, 300, passes)))


def test_drafting_up_to_complete_guesses_is_one_span():
    with collected("draft") as exporter:
        trace = DraftTrace(current_tracing())
        trace.received(STREAM, opening(1, PARENT))
        trace.received(STREAM, opening(2, parent(2, "00")))
        trace.drafted([Answer(STREAM, Nack(()))])
        for complete in (False, False, True):
            trace.drafted([drafted(1, 4, complete, 1)])
        trace.drafted([drafted(2, 4, True, 1)])
        trace.drafted([drafted(1, 2, True, 2)])
        trace.received(STREAM, None)
    first, second = named(exporter.get_finished_spans(), names.DRAFT_WORK)
    (sequence,) = named(exporter.get_finished_spans(), names.DRAFT_SEQUENCE)
    assert first.parent is None and f"{first.context.trace_id:032x}" == TRACE
    assert [f"{link.context.span_id:016x}" for link in first.links] == [SPAN]
    assert (first.attributes[names.NODES], first.attributes[names.PASSES]) == (12, 3)
    assert first.attributes[names.MODEL_US] == 900
    assert second.attributes[names.NODES] == 2
    assert f"{sequence.parent.span_id:016x}" == SPAN
    assert sequence.attributes[names.NODES] == 14 and sequence.attributes[names.ROUNDS] == 2


def test_a_round_shows_what_the_drafter_was_told():
    """By the gateway whose work it was; another one tells something else."""
    with collected("draft") as exporter:
        trace = DraftTrace(current_tracing())
        trace.received(STREAM, opening(1, PARENT))
        trace.drafted([drafted(1, 4, True, 1)])
        for budget in (DraftBudget(64, 32, 0.05, 0.01), DraftBudget(0, 16, 0.25, 0.0)):
            trace.received(STREAM, budget)
            trace.received(STREAM + 1, DraftBudget(5, 6, 0.5))
            trace.drafted([drafted(1, 4, True, 1)])
    before, first, second = named(exporter.get_finished_spans(), names.DRAFT_WORK)
    told = names.MAX_NODES, names.MAX_DEPTH, names.MIN_SURVIVAL, names.AHEAD_SURVIVAL
    assert not before.attributes.keys() & set(told)
    assert [first.attributes[name] for name in told] == [64, 32, 0.05, 0.01]
    assert [second.attributes[name] for name in told] == [0, 16, 0.25, 0.0]


def test_work_for_a_root_ends_with_the_root():
    with collected("draft") as exporter:
        trace = DraftTrace(current_tracing())
        trace.received(STREAM, opening(1, PARENT))
        for root in (5, 5, 6, 6, 7):
            trace.drafted([drafted(1, 3, False, 1, root)])
        trace.drafted([drafted(1, 1, True, 1, 7)])
    spans = named(exporter.get_finished_spans(), names.DRAFT_WORK)
    assert [span.attributes[names.NODES] for span in spans] == [6, 6, 4]


def test_a_sequence_that_the_drafter_lost_ends():
    with collected("draft") as exporter:
        trace = DraftTrace(current_tracing())
        for number in (1, 2):
            trace.received(STREAM, opening(number, parent(number)))
        trace.drafted([Answer(STREAM, Nack((SequenceError(1, 1, 9, "lost"),)))])
        ended = [span.context.trace_id for span in exporter.get_finished_spans()]
    assert ended == [1]
