"""The trace of one request: its W3C context and, where tracing is on, its span."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_trace_id

from foredraft.params import FinishReason
from foredraft.request import ChatPrompt, GenerateRequest
from foredraft.results import Stats
from foredraft.telemetry import names
from foredraft.telemetry.context import TRACEPARENT as TRACEPARENT_KEY
from foredraft.telemetry.context import read_parent, span_context, write_parent
from foredraft.telemetry.sample import Sample
from foredraft.telemetry.setup import current_tracing
from foredraft.wire.messages import Commit, StepResult
from gateway.plan import Plan

__all__ = ["TRACEPARENT_KEY", "Trace", "start_trace"]

# With all attributes of a step so many events keep a request's span below 8 KB.
MOST_STEPS = 40

_IDS = RandomIdGenerator()
_LARGEST = 2**63  # no attribute can be a larger whole number


_TOTALS = {
    names.STEP_HELD_US: names.HELD_US,
    names.STEP_QUEUE_US: names.QUEUE_US,
    names.STEP_FORWARD_US: names.FORWARD_US,
    names.STEP_SAMPLE_US: names.SAMPLE_US,
    names.STEP_HOP_US: names.HOP_US,
}


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

    def opened(self, plan: Plan, model: str) -> None:
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
        self._first_us = 0
        self._ahead_us = 0
        self._steps: Sample[tuple[int, dict[str, int]]] = Sample(MOST_STEPS)
        self._totals = dict.fromkeys(_TOTALS.values(), 0)
        self._stats: list[Stats] = []
        self._finishes: list[str] = []

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
            self._span.set_attribute(names.ERROR_TYPE, type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            for at, attributes in self._steps.kept:
                self._span.add_event(names.STEP, attributes, at)
            self._span.end()

    def opened(self, plan: Plan, model: str) -> None:
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
        self._span.add_event(names.OPENED)
        self._last = time.perf_counter()

    def stepped(self, step: StepResult, commit: Commit, arrived: float) -> None:
        now = time.perf_counter()
        if not self._first_us and commit.tokens:
            self._first_us = _us(now - self._began)
        timings = step.timings
        own = timings.prepare_us + timings.forward_us + timings.sample_us + timings.commit_us
        # Steps that arrive late arrive close together: what one waited, the next ones did not.
        waited = _us(arrived - self._last) - timings.held_us - own + self._ahead_us
        self._ahead_us = min(0, waited)
        durations = {
            names.STEP_HELD_US: timings.held_us,
            names.STEP_QUEUE_US: max(0, waited),
            names.STEP_FORWARD_US: timings.forward_us,
            names.STEP_SAMPLE_US: timings.sample_us,
            names.STEP_HOP_US: _us(now - arrived),
        }
        self._last = arrived
        for name, total in _TOTALS.items():
            self._totals[total] += durations[name]
        seen = {names.STEP_NUMBER: step.step, names.STEP_TOKENS: len(commit.tokens)}
        self._steps.offer((time.time_ns(), seen | durations))

    def finished(self, reason: FinishReason | None, stats: Stats) -> None:
        """Called once for every choice of a request; counts are sums over them."""
        self._span.add_event(names.FINISHED)
        self._stats.append(stats)
        self._finishes.append("cancelled" if reason is None else reason.name.lower())
        steps = sum(s.steps for s in self._stats)
        tokens = sum(s.completion_tokens for s in self._stats)
        self._span.set_attributes(
            {
                names.RESPONSE_FINISH_REASONS: self._finishes,
                names.USAGE_INPUT_TOKENS: stats.prompt_tokens,
                names.USAGE_OUTPUT_TOKENS: tokens,
                names.STEPS: steps,
                names.STEPS_SHOWN: len(self._steps.kept),
                names.HIT_STEPS: sum(s.hit_steps for s in self._stats),
                names.TOKENS_PER_STEP: tokens / steps if steps else 0.0,
                names.VERIFIED_NODES: sum(s.verified_nodes for s in self._stats),
                names.ACCEPTED_NODES: sum(sum(s.accepted_by_depth) for s in self._stats),
                names.FIRST_TOKEN_US: self._first_us,
                **self._totals,
            }
        )


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
