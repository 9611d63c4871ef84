"""What the verify worker tells of its work: a span per sequence, and one per step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from foredraft.telemetry import names
from foredraft.telemetry.sequences import Key, TracedSequence, TracedSequences
from foredraft.telemetry.setup import Tracing
from foredraft.wire.codec.verify import Request
from foredraft.wire.messages import CloseSequences, Commit, OpenSequences, StepTimings, VerifyBudget

_MOST_NOTES = 16
_SHARE = names.LINK_TOKENS, names.LINK_NODES, names.LINK_ACCEPTED


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


@dataclass(frozen=True, slots=True)
class _Prefilled:
    """A chunk of a prompt was run."""

    key: Key
    ready: bool
    began: float
    ended: float
    ended_ns: int


@dataclass(frozen=True, slots=True)
class _Refused:
    keys: tuple[Key, ...]
    at_ns: int


@dataclass(frozen=True, slots=True)
class _Made:
    """A step, when it began and when its results were on their way."""

    step: Step
    began: float
    ended: float
    ended_ns: int

    @property
    def published(self) -> float:
        """Seconds from its commits to its end."""
        timings = self.step.timings
        own = timings.prepare_us + timings.forward_us + timings.sample_us + timings.commit_us
        return max(0.0, self.ended - self.began - own / 1e6)


class StepTrace:
    """Held by a loop only where tracing is on.

    The engine's thread only notes what it did, as the next step waits for it. Notes are worked off
    in the event loop's thread, some at a time, at the latest before a sequence ends.

    soon: calls a function in the event loop's thread; callable from any.
    """

    def __init__(self, tracing: Tracing, soon: Callable[[Callable[[], None]], object]) -> None:
        self._batch = tracing.batch
        self._lives = TracedSequences(tracing.tracer, names.VERIFY_SEQUENCE, _Life)
        self._soon = soon
        self._notes: deque[_Prefilled | _Made | _Refused] = deque()

    def received(self, stream: int, request: Request | None) -> None:
        """A message of a stream came; None: the stream has ended. Called in the event loop."""
        match request:
            case None:
                self._ended(self._lives.of_stream(stream))
            case OpenSequences(sequences):
                for opened in sequences:
                    self._ended([(stream, opened.seq_id)])
                    self._lives.open(stream, opened)
            case CloseSequences(sequences):
                self._ended((stream, close.seq_id) for close in sequences)

    def prefilled(self, key: Key, began: float, ready: bool) -> None:
        """A chunk of a prompt was run since ``began``; ``ready``: it was the last one."""
        self._notes.append(_Prefilled(key, ready, began, time.perf_counter(), time.time_ns()))

    def stepped(self, began: float, step: Step) -> None:
        """A step was made since ``began``, the time for which it was held not included.

        It ends with its results on their way; for a sequence that it finished, with the commit.
        """
        if not len(self._lives):
            return
        self._notes.append(_Made(step, began, time.perf_counter(), time.time_ns()))
        finished = any(commit.finish is not None for _, commit in step.commits)
        if finished or len(self._notes) >= _MOST_NOTES:
            self._soon(self._work_off)

    def refused(self, keys: Iterable[Key]) -> None:
        """Sequences that the engine could not take or go on with."""
        self._notes.append(_Refused(tuple(keys), time.time_ns()))
        self._soon(self._work_off)

    def _ended(self, keys: Iterable[Key]) -> None:
        """Sequences that live no more; harmless for those that never did."""
        self._work_off()
        for key in keys:
            self._end(key, time.time_ns())

    def _work_off(self) -> None:
        while self._notes:
            match self._notes.popleft():
                case _Prefilled() as prefilled:
                    self._tell_prefilled(prefilled)
                case _Made() as made:
                    self._tell_made(made)
                case _Refused(keys, at_ns):
                    for key in keys:
                        self._end(key, at_ns)

    def _tell_prefilled(self, chunk: _Prefilled) -> None:
        self._keep_waiting({chunk.key}, chunk.began, chunk.ended)
        life = self._lives.get(chunk.key)
        if life is not None:
            life.prefill += chunk.ended - chunk.began
            if chunk.ready:
                life.span.add_event(names.PREFILLED, timestamp=chunk.ended_ns)

    def _tell_made(self, made: _Made) -> None:
        step, open_before = made.step, len(self._lives)
        spent, held, published = made.ended - made.began, step.timings.held_us / 1e6, made.published
        links, served = [], set()
        for key, commit in step.commits:
            life = self._lives.find(key, commit.incarnation)
            if life is None:
                continue
            served.add(key)
            share = len(commit.tokens), commit.verified, commit.accepted
            links.append(life.link(_SHARE, share))
            life.steps += 1
            life.held += held
            life.verify += spent
            if commit.finish is not None:
                life.verify -= published
                self._end(key, made.ended_ns - round(published * 1e9))
        if len(served) < open_before:
            self._keep_waiting(served, made.began - held, made.ended)
        if links:
            began_ns = made.ended_ns - round((spent + held) * 1e9)
            attributes = _attributes(step, _us(published))
            self._batch.record(names.VERIFY_STEP, links, began_ns, made.ended_ns, attributes)

    def _keep_waiting(self, served: Container[Key], began: float, ended: float) -> None:
        """Sequences that were not served waited, as far as they were there."""
        for key, life in self._lives.items():
            if key not in served:
                life.others += max(0.0, ended - max(began, life.began))

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


def _attributes(step: Step, publish_us: int) -> dict[str, str | int | bool]:
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
        names.PUBLISH_US: publish_us,
        names.SCHEDULE: budget.schedule.name.lower(),
        names.MAX_NODES: budget.max_nodes,
        names.DRAFTING: budget.drafting,
        names.HOLD_LIMIT_US: step.hold_limit_us,
        names.WAITED_FOR: step.waited_for,
        names.PREEMPTED: step.preempted,
    }


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
