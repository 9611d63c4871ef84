"""What the verify worker tells of its work: a span per sequence, and one per step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opentelemetry.trace import Link

from foredraft.telemetry import names
from foredraft.telemetry.sequences import Key, TracedSequence, TracedSequences
from foredraft.telemetry.setup import Tracing
from foredraft.wire.codec.verify import Request
from foredraft.wire.messages import CloseSequences, Commit, OpenSequences, StepTimings, VerifyBudget


@dataclass(slots=True)
class _Life(TracedSequence):
    """Where the engine thread's seconds went while the sequence was open."""

    prefill: float = 0.0
    held: float = 0.0
    verify: float = 0.0
    others: float = 0.0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A step as its span shows it; ``commits`` are those of all streams.

    ``preempted``: how often a sequence was since the step before.
    """

    number: int
    timings: StepTimings
    commits: Sequence[tuple[Key, Commit]]
    rows: int
    budget: VerifyBudget
    hold_limit_us: int
    waited_for: int
    preempted: int


class StepTrace:
    """Held by a loop only where tracing is on."""

    def __init__(self, tracing: Tracing) -> None:
        self._batch = tracing.batch
        self._lives = TracedSequences(tracing.tracer, names.VERIFY_SEQUENCE, _Life)

    def received(self, stream: int, request: Request | None) -> None:
        """A message of a stream came; None: the stream has ended. Called in the event loop."""
        match request:
            case None:
                self.ended(self._lives.of_stream(stream))
            case OpenSequences(sequences):
                for opened in sequences:
                    self.ended([(stream, opened.seq_id)])
                    self._lives.open(stream, opened)
            case CloseSequences(sequences):
                self.ended((stream, close.seq_id) for close in sequences)

    def prefilled(self, key: Key, began: float, ready: bool) -> None:
        """A chunk of a prompt was run since ``began``; ``ready``: it was the last one."""
        now = time.perf_counter()
        for other, life in self._lives.items():
            if other != key:
                life.others += max(0.0, now - max(began, life.began))
            else:
                life.prefill += now - began
                if ready:
                    life.span.add_event(names.PREFILLED)

    def stepped(self, began: float, step: Step) -> None:
        """A step was made since ``began``, the time for which it was held not included.

        It ends with its results on their way; for a sequence that it finished, with the commit.
        """
        if not len(self._lives):
            return
        now, now_ns = time.perf_counter(), time.time_ns()
        published = max(0.0, now - began - _own(step.timings))
        held = step.timings.held_us / 1e6
        links, served = [], set()
        for key, commit in step.commits:
            life = self._lives.find(key, commit.incarnation)
            if life is None:
                continue
            served.add(key)
            links.append(Link(life.request, _share(commit)))
            life.steps += 1
            life.held += held
            life.verify += now - began
            if commit.finish is not None:
                life.verify -= published
                self._end(key, now_ns - round(published * 1e9))
        for key, life in self._lives.items():
            if key not in served:
                life.others += max(0.0, now - max(began - held, life.began))
        if links:
            began_ns = now_ns - round((now - began + held) * 1e9)
            attributes = _attributes(step) | {names.PUBLISH_US: _us(published)}
            self._batch.record(names.VERIFY_STEP, links, began_ns, now_ns, attributes)

    def ended(self, keys: Iterable[Key]) -> None:
        """Sequences that live no more; harmless for those that never did."""
        for key in keys:
            self._end(key, time.time_ns())

    def _end(self, key: Key, at_ns: int) -> None:
        life = self._lives.pop(key)
        if life is not None:
            life.span.set_attributes(
                {
                    names.PROMPT_TOKENS: len(life.opened.prompt),
                    names.STEPS: life.steps,
                    names.PREFILL_US: _us(life.prefill),
                    names.HELD_US: _us(life.held),
                    names.VERIFY_US: _us(life.verify),
                    names.OTHERS_US: _us(life.others),
                }
            )
            life.span.end(at_ns)


def _own(timings: StepTimings) -> float:
    """Seconds of a step itself, from the choice of its nodes to its commits."""
    parts = timings.prepare_us, timings.forward_us, timings.sample_us, timings.commit_us
    return sum(parts) / 1e6


def _share(commit: Commit) -> dict[str, int]:
    return {
        names.LINK_TOKENS: len(commit.tokens),
        names.LINK_NODES: commit.verified,
        names.LINK_ACCEPTED: commit.accepted,
    }


def _attributes(step: Step) -> dict[str, str | int | bool]:
    timings, budget = step.timings, step.budget
    return {
        names.STEP_INDEX: step.number,
        names.SEQUENCES: len(step.commits),
        names.ROWS: step.rows,
        names.NODES: step.rows - len(step.commits),
        names.PERIOD_US: timings.period_us,
        names.HELD_US: timings.held_us,
        names.PREPARE_US: timings.prepare_us,
        names.FORWARD_US: timings.forward_us,
        names.SAMPLE_US: timings.sample_us,
        names.COMMIT_US: timings.commit_us,
        names.SCHEDULE: budget.schedule.name.lower(),
        names.MAX_NODES: budget.max_nodes,
        names.DRAFTING: budget.drafting,
        names.HOLD_LIMIT_US: step.hold_limit_us,
        names.WAITED_FOR: step.waited_for,
        names.PREEMPTED: step.preempted,
    }


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
