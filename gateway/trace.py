"""The trace of one request: its W3C context and, where tracing is on, its span."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_trace_id
from opentelemetry.util.types import AttributeValue

from foredraft.params import FinishReason
from foredraft.request import ChatPrompt, GenerateRequest
from foredraft.results import Stats
from foredraft.telemetry import names
from foredraft.telemetry.context import TRACEPARENT as TRACEPARENT_KEY
from foredraft.telemetry.context import read_parent, span_context, write_parent
from foredraft.telemetry.sample import Sample
from foredraft.telemetry.setup import current_tracing
from foredraft.wire.errors import Unavailable
from foredraft.wire.messages import Commit, StepResult, StepTimings
from gateway.plan import Plan
from gateway.turns import Turn, Turns, step_us

__all__ = ["TRACEPARENT_KEY", "Trace", "start_trace"]

# With all attributes of each so many events keep a request's span below 8 KB.
MOST_STEPS = 32
MOST_SILENCES = 8
_MOST_REASONS = 16  # of choices, one by one; they are counted, too
_SILENCE_US = 1_000_000  # before a client has given up: shorter ones are no news

_IDS = RandomIdGenerator()
_CANCELLED = FinishReason.CANCELLED.name.lower()
_LARGEST = 2**63  # no attribute can be a larger whole number


@dataclass(slots=True)
class _Totals:
    """Microseconds of all steps."""

    held: int = 0
    queue: int = 0
    forward: int = 0
    sample: int = 0
    hop: int = 0


@dataclass(slots=True)
class _Shown:
    """A step that will have an event; ``arrived`` is a value of `perf_counter`."""

    number: int
    timings: StepTimings
    arrived: float
    queue_us: int
    hop_us: int = 0
    tokens: int = 0


class Trace:
    """The request runs inside `running`. This one records nothing.

    ``parent`` is what the workers get: their spans are children of the request's own. Without
    such a span they are children of the caller's, or belong to a trace that is not kept.
    """

    def __init__(self, trace_id: str, parent: str) -> None:
        self.trace_id = trace_id
        self.parent = parent

    @contextmanager
    def running(self, asked: GenerateRequest) -> Iterator[None]:
        """From before the request's admission until nobody listens any more."""
        yield

    def opened(self, plan: Plan, model: str, incarnation: int) -> None:
        """The request goes to the target."""

    def stepped(self, step: StepResult, commit: Commit, arrived: float) -> None:
        """A step of it was delivered; it came at ``arrived``, a value of `perf_counter`."""

    def finished(self, reason: FinishReason | None, stats: Stats) -> None:
        """The last step was delivered, or the request was given up."""


def start_trace(traceparent: str | None) -> Trace:
    """Continue the caller's trace if it sent a valid one, else begin a new one."""
    tracing = current_tracing()
    if tracing is None:
        caller = span_context(traceparent)
        if traceparent is not None and caller.is_valid:
            return Trace(format_trace_id(caller.trace_id), traceparent)
        trace_id = format_trace_id(_IDS.generate_trace_id())
        return Trace(trace_id, f"00-{trace_id}-{_IDS.generate_span_id():016x}-00")
    span = tracing.tracer.start_span(
        names.TEXT_COMPLETION, read_parent(traceparent), SpanKind.SERVER
    )
    trace_id = format_trace_id(span.get_span_context().trace_id)
    if not span.is_recording():
        return Trace(trace_id, write_parent(span))
    return RecordedTrace(trace_id, span)


class RecordedTrace(Trace):
    """A request's span: a sample of its steps as events, totals over all of them as attributes."""

    def __init__(self, trace_id: str, span: Span) -> None:
        super().__init__(trace_id, write_parent(span))
        self._span = span
        self._operation = names.TEXT_COMPLETION
        self._began = self._last = time.perf_counter()
        self._opened_ns = self._finished_ns = 0
        self._prompt_tokens = 0
        self._first_us = 0
        self._ahead_us = 0
        self._turns = Turns()
        self._hop_us = 0  # of the newest step, so far
        self._shown: _Shown | None = None  # the newest step, if it is one of the sample
        self._sample: Sample[_Shown] = Sample(MOST_STEPS)
        self._totals = _Totals()
        self._stats: list[Stats] = []
        self._finishes: list[str] = []
        self._unavailable = False

    @contextmanager
    def running(self, asked: GenerateRequest) -> Iterator[None]:
        if isinstance(asked.prompt, ChatPrompt):
            self._operation = names.CHAT
        self._span.update_name(self._operation)
        self._span.set_attribute(names.OPERATION_NAME, self._operation)
        self._span.set_attribute(names.PROVIDER_NAME, names.PROVIDER)
        try:
            yield
        except Exception as error:
            self._unavailable = isinstance(error, Unavailable)
            self._span.set_attribute(names.ERROR_TYPE, type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            self._tell()
            self._span.end()

    def opened(self, plan: Plan, model: str, incarnation: int) -> None:
        """Called once for every choice; they are sent when all have been opened."""
        self._opened_ns = time.time_ns()
        self._last = time.perf_counter()
        self._turns.opened(self._last, incarnation)
        if plan.choice:
            return
        self._prompt_tokens += len(plan.prompt)
        params = plan.params
        self._span.update_name(f"{self._operation} {model}")
        self._span.set_attributes(
            {
                names.REQUEST_MODEL: model,
                names.REQUEST_MAX_TOKENS: params.max_tokens,
                names.REQUEST_TEMPERATURE: params.temperature,
                names.REQUEST_TOP_P: params.top_p,
                names.REQUEST_TOP_K: params.top_k,
                names.REQUEST_FREQUENCY_PENALTY: params.frequency_penalty,
                names.REQUEST_PRESENCE_PENALTY: params.presence_penalty,
                names.SPECULATION: plan.speculation.name.lower(),
            }
        )
        if params.seed < _LARGEST:
            self._span.set_attribute(names.REQUEST_SEED, params.seed)

    def stepped(self, step: StepResult, commit: Commit, arrived: float) -> None:
        now = time.perf_counter()
        if not self._first_us and commit.tokens:
            self._first_us = _us(now - self._began)
        own = step_us(step.timings)
        self._turns.stepped(commit, own, step.timings.held_us, arrived)
        if arrived != self._last:  # choices that share a step share its event
            self._new_step(step, own, arrived)
        hop_us = _us(now - arrived)
        self._totals.hop += hop_us - self._hop_us
        self._hop_us = hop_us
        if self._shown is not None:
            self._shown.hop_us = hop_us
            self._shown.tokens += len(commit.tokens)

    def _new_step(self, step: StepResult, own: int, arrived: float) -> None:
        timings, totals = step.timings, self._totals
        # Steps that arrive late arrive close together: what one waited, the next ones did not.
        waited = _us(arrived - self._last) - timings.held_us - own + self._ahead_us
        self._ahead_us = min(0, waited)
        self._last = arrived
        queue_us = max(0, waited)
        totals.held += timings.held_us
        totals.queue += queue_us
        totals.forward += timings.forward_us
        totals.sample += timings.sample_us
        self._hop_us = 0
        self._shown = None
        if self._sample.wants():
            self._shown = _Shown(step.step, timings, arrived, queue_us)
            self._sample.keep(self._shown)

    def finished(self, reason: FinishReason | None, stats: Stats) -> None:
        """Called once for every choice."""
        self._finished_ns = time.time_ns()
        self._stats.append(stats)
        self._finishes.append(_CANCELLED if reason is None else reason.name.lower())

    def _tell(self) -> None:
        """Put what was seen on the span, nothing of it once for every choice."""
        if self._opened_ns:
            self._span.add_event(names.OPENED, timestamp=self._opened_ns)
        now, now_ns = time.perf_counter(), time.time_ns()
        for shown in self._sample.kept:
            at = now_ns - round((now - shown.arrived) * 1e9)
            self._span.add_event(names.STEP, _event(shown), at)
        if self._finishes:
            self._tell_silences()
            self._span.add_event(names.FINISHED, timestamp=self._finished_ns)
            self._span.set_attributes(self._sums())

    def _tell_silences(self) -> None:
        now, now_ns = time.perf_counter(), time.time_ns()
        turns = [*self._turns.lost(MOST_SILENCES)]
        newest = self._turns.newest(now)
        left = newest.silent_us >= _SILENCE_US and _CANCELLED in self._finishes
        if self._unavailable or left:
            turns.append(newest)
        for turn in turns:
            at = now_ns - round((now - turn.heard) * 1e9)
            self._span.add_event(names.SILENCE, _heard_of(turn), at)

    def _sums(self) -> dict[str, AttributeValue]:
        """Over all choices."""
        steps = sum(s.steps for s in self._stats)
        tokens = sum(s.completion_tokens for s in self._stats)
        finishes = Counter(self._finishes)
        return {
            names.RESPONSE_FINISH_REASONS: self._finishes[:_MOST_REASONS],
            names.CHOICES: len(self._finishes),
            **{names.FINISHES + reason: count for reason, count in finishes.items()},
            names.SEQUENCE: self._turns.last_heard,
            names.USAGE_INPUT_TOKENS: self._prompt_tokens,
            names.USAGE_OUTPUT_TOKENS: tokens,
            names.STEPS: steps,
            names.STEPS_SHOWN: len(self._sample.kept),
            names.HIT_STEPS: sum(s.hit_steps for s in self._stats),
            names.TOKENS_PER_STEP: tokens / steps if steps else 0.0,
            names.VERIFIED_NODES: sum(s.verified_nodes for s in self._stats),
            names.ACCEPTED_NODES: sum(sum(s.accepted_by_depth) for s in self._stats),
            names.FIRST_TOKEN_US: self._first_us,
            names.HELD_US: self._totals.held,
            names.QUEUE_US: self._totals.queue,
            names.FORWARD_US: self._totals.forward,
            names.SAMPLE_US: self._totals.sample,
            names.HOP_US: self._totals.hop,
        }


def _event(shown: _Shown) -> dict[str, int]:
    timings = shown.timings
    return {
        names.STEP_NUMBER: shown.number,
        names.STEP_TOKENS: shown.tokens,
        names.STEP_HELD_US: timings.held_us,
        names.STEP_QUEUE_US: shown.queue_us,
        names.STEP_FORWARD_US: timings.forward_us,
        names.STEP_SAMPLE_US: timings.sample_us,
        names.STEP_HOP_US: shown.hop_us,
    }


def _heard_of(turn: Turn) -> dict[str, int]:
    return {
        names.SILENCE_US: turn.silent_us,
        names.HEARD_INCARNATION: turn.incarnation,
        names.HEARD_STEPS: turn.steps,
        names.HEARD_VERIFY_US: turn.verify_us,
        names.HEARD_HELD_US: turn.held_us,
        names.HEARD_WAIT_US: turn.wait_us,
    }


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
