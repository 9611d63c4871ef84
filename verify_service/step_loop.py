"""The loop of the engine thread: take messages, prefill a chunk, run a step, publish."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from foredraft.engine.runner import Runner, SequenceRows
from foredraft.params import Schedule
from foredraft.policy.cost import StepCost
from foredraft.policy.hold import HoldState, is_rich, patience_us
from foredraft.wire.codec.verify import Request, Response
from foredraft.wire.errors import code_number, describe
from foredraft.wire.messages import (
    CloseSequences,
    NodeBatch,
    NodeGroup,
    OpenSequences,
    SequenceError,
    SequenceErrors,
    StepResult,
    StepTimings,
    VerifyBudget,
)
from verify_service.pulse import Pulse
from verify_service.scheduler import Refused, Scheduler
from verify_service.sequence import Key, VerifySequence
from verify_service.step import Outcome, run, select
from verify_service.trace import Step, StepTrace

log = logging.getLogger(__name__)

_REPLAY_ROWS = 64
_MOST_FAULTS = 2  # passes in a row that may fail before the model is given up


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message of one stream; None says that the stream has ended."""

    stream: int
    request: Request | None


@dataclass(frozen=True, slots=True)
class _Hold:
    """How long a step was held, and for the guesses of which sequences."""

    microseconds: int = 0
    waited_for: frozenset[Key] = frozenset()
    limit_us: int = 0


class StepLoop:
    """Owns the model, the KV and all sequences; lives in one thread."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        cost: StepCost,
        publish: Callable[[int, Response], None],
        trace: StepTrace | None = None,
    ) -> None:
        self.inbox: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self.pulse = Pulse()
        self._runner = runner
        self._scheduler = scheduler
        self._cost = cost
        self._publish = publish
        self._trace = trace
        self._budget = VerifyBudget(max_nodes=0, max_hold_us=0, drafting=False)
        self._hold = HoldState()
        self._steps = 0
        self._faults = 0  # steps in a row that failed
        self._began: float | None = None  # the step before, unless something else came between
        self._stopping = False

    def stop(self) -> None:
        """End the loop after the current step; callable from any thread."""
        self.inbox.put(None)

    def run(self) -> None:
        """Until stopped: the loop that the budget's schedule asks for."""
        while not self._stopping:
            if self._budget.schedule is Schedule.SERIAL:
                self.serial()
            else:
                self.overlapped()

    def serial(self) -> None:
        """Draft, then verify: a step waits for complete guesses of its very roots."""
        self._prepare()
        held = self._hold_for_guesses(VerifySequence.awaits_drafts)
        self._step(held)

    def overlapped(self) -> None:
        """The drafter works on while the target steps: what a hit has left is verified at once.

        A step that has too little to verify is held, but only for as long as that pays.
        """
        self._prepare()
        held = self._hold_for_guesses(_lacks_guesses)
        self._step(held)

    def _prepare(self) -> None:
        """Take what came, start what fits, run at most one chunk of one prompt."""
        self._take_arrivals()
        self._scheduler.make_room()
        self._scheduler.admit()
        if (sequence := self._scheduler.next_prefill()) is not None:
            self._began = None
            self._prefill(sequence)

    def _step(self, held: _Hold) -> None:
        started = time.perf_counter()
        ready = self._scheduler.ready()
        if not ready:
            return
        trees = select(ready, self._budget.max_nodes, self._cost, self._scheduler.reservations)
        prepare_us = round((time.perf_counter() - started) * 1e6)
        try:
            with self.pulse.expecting(self._cost(sum(len(tree.tokens) for tree in trees))):
                outcomes, timings = run(self._runner, trees)
        except Exception as error:
            self._fail(ready, error)
            return
        self._faults = 0
        timings = replace(timings, held_us=held.microseconds, hold_limit_us=held.limit_us)
        timings = replace(timings, prepare_us=prepare_us)
        for outcome in outcomes:
            if outcome.commit is None or outcome.commit.finish is not None:
                self._scheduler.finish(outcome.sequence)
        rows = sum(len(tree.tokens) for tree in trees)
        self._learn(outcomes, held, rows)
        self._steps += 1
        for stream in {outcome.sequence.stream for outcome in outcomes}:
            mine = [outcome for outcome in outcomes if outcome.sequence.stream == stream]
            commits = tuple(outcome.commit for outcome in mine if outcome.commit is not None)
            free = self._scheduler.reservations.free_blocks
            self._publish(stream, StepResult(self._steps, commits, timings, free))
            self._refuse(stream, (o.error for o in mine if o.error is not None))
        if self._trace is not None:
            self._trace.stepped(started, self._describe(timings, outcomes, held, rows))

    def _describe(
        self, timings: StepTimings, outcomes: Sequence[Outcome], held: _Hold, rows: int
    ) -> Step:
        return Step(
            number=self._steps,
            timings=timings,
            commits=[(o.sequence.key, o.commit) for o in outcomes if o.commit is not None],
            rows=rows,
            budget=self._budget,
            hold_limit_us=held.limit_us,
            waited_for=len(held.waited_for),
            preempted=self._scheduler.take_preempted(),
        )

    def _fail(self, sequences: Iterable[VerifySequence], error: Exception) -> None:
        """End the sequences of a pass that failed; a model that goes on failing ends the worker."""
        self._faults += 1
        if self._faults > _MOST_FAULTS:
            raise error
        fault = describe(error)
        for sequence in sequences:
            sequence.sound = False
            self._scheduler.finish(sequence)
            name = sequence.opened.seq_id, sequence.opened.incarnation
            text = SequenceError(*name, code_number(fault.code), fault.message)
            self._refuse(sequence.stream, (text,))

    def _learn(self, outcomes: Sequence[Outcome], held: _Hold, rows: int) -> None:
        now = time.perf_counter()
        if self._began is not None:
            self._cost = self._cost.observed(rows, (now - self._began) * 1000)
        self._began = now
        if self._budget.drafting and self._budget.max_nodes:
            saved = sum(
                o.commit is not None and o.commit.accepted > 0 and o.sequence.key in held.waited_for
                for o in outcomes
            )
            self._hold = self._hold.stepped(
                held=bool(held.waited_for), saved=saved, sequences=len(outcomes)
            )

    def _hold_for_guesses(self, lacks: Callable[[VerifySequence], bool]) -> _Hold:
        """Wait while guesses are due and the wait pays; nothing where no sequence lacks any."""
        limit_us = self._hold.limit_us(self._budget, self._plain_us())
        waited_for = frozenset(s.key for s in self._scheduler.ready() if lacks(s))
        if limit_us <= 0 or not waited_for:
            return _Hold(limit_us=round(limit_us))
        started = time.perf_counter()
        held_us, first_us, expected = 0.0, 0.0, self._expected()
        while held_us < limit_us and self._awaits_drafts() and not self._stopping:
            try:
                self._take(self.inbox.get(timeout=(limit_us - held_us) / 1e6))
            except queue.Empty:
                break
            finally:
                held_us = (time.perf_counter() - started) * 1e6
            if (now := self._expected()) > expected:
                first_us = first_us or held_us
                limit_us = self._prolonged(limit_us, held_us, now - expected, now)
                expected = now
        in_vain = first_us == 0.0 and self._awaits_drafts()
        self._hold = self._hold.held(first_us or held_us, in_vain=in_vain)
        return _Hold(round(held_us), waited_for, round(limit_us))

    def _prolonged(self, limit_us: float, held_us: float, gained: float, now: float) -> float:
        """The hold's limit after guesses came; a serial step waits for all of them anyway."""
        if self._budget.schedule is Schedule.SERIAL:
            return limit_us
        more = patience_us(gained, now, self._plain_us() + held_us)
        return min(held_us + more, float(self._budget.max_hold_us))

    def _plain_us(self) -> float:
        return self._cost(len(self._scheduler.ready())) * 1000

    def _awaits_drafts(self) -> bool:
        return any(sequence.awaits_drafts() for sequence in self._scheduler.ready())

    def _expected(self) -> float:
        """Tokens that a step of all ready sequences and all their guesses promises."""
        ready = self._scheduler.ready()
        return sum(1.0 + sequence.tree.promise() for sequence in ready)

    def _prefill(self, sequence: VerifySequence) -> None:
        started = time.perf_counter()
        try:
            with self.pulse.expecting(self._cost(max(self._runner.chunk, _REPLAY_ROWS))):
                self._feed(sequence)
        except Exception as error:
            self._fail((sequence,), error)
        if self._trace is not None:
            self._trace.prefilled(sequence.key, started, sequence.ready)

    def _feed(self, sequence: VerifySequence) -> None:
        """Run one chunk of the prompt, or one chain of tokens that were committed before."""
        prompt_end = min(len(sequence.opened.prompt), len(sequence.tokens) - 1)
        start = sequence.fed
        if start < prompt_end:
            end = min(start + self._runner.chunk, prompt_end)
            self._runner.prefill(sequence.blocks, sequence.tokens[start:end], start)
        else:
            end = min(start + _REPLAY_ROWS, len(sequence.tokens) - 1)
            paths = [tuple(range(start, slot + 1)) for slot in range(start, end)]
            chain = SequenceRows(sequence.blocks, start, sequence.tokens[start:end], paths)
            self._runner.forward([chain])
        sequence.fed = end

    def _take_arrivals(self) -> None:
        """All that wait; without any sequence, the next one that comes."""
        if len(self._scheduler) == 0:
            self._began = None
            self._take(self.inbox.get())
        while not self.inbox.empty():
            self._take(self.inbox.get())

    def _take(self, arrival: Arrival | None) -> None:
        if arrival is None:
            self._stopping = True
            return
        stream = arrival.stream
        match arrival.request:
            case None:
                self._scheduler.close_stream(stream)
            case OpenSequences(sequences):
                for opened in sequences:
                    try:
                        self._scheduler.open(stream, opened)
                    except Refused as refused:
                        self._refuse(stream, (refused.error,))
            case CloseSequences(sequences):
                for close in sequences:
                    self._scheduler.close(stream, close)
            case VerifyBudget() as budget:
                self._budget = budget
                self._hold = HoldState()
            case NodeBatch(groups):
                self._attach(stream, groups)

    def _attach(self, stream: int, groups: Iterable[NodeGroup]) -> None:
        vocab = self._runner.info.vocab_size
        for group in groups:
            sequence = self._scheduler.find(stream, group.seq_id, group.incarnation)
            if sequence is None:
                continue  # closed while the guesses were on their way
            if group.tokens and max(group.tokens) >= vocab:
                log.warning("guesses outside the vocabulary of %d tokens were dropped", vocab)
                continue
            sequence.attach(group)
            if sequence.drafted:
                self._hold = self._hold.on_time()

    def _refuse(self, stream: int, errors: Iterable[SequenceError]) -> None:
        listed = tuple(errors)
        if listed:
            self._publish(stream, SequenceErrors(listed))
            if self._trace is not None:
                self._trace.ended((stream, error.seq_id) for error in listed)


def _lacks_guesses(sequence: VerifySequence) -> bool:
    """True if guesses are on their way and too few are here."""
    return sequence.awaits_drafts() and not is_rich(sequence.tree.promise())
