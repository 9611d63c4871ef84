"""The loop of the engine thread: take messages, prefill a chunk, run a step, publish."""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from foredraft.engine.runner import Runner, SequenceRows
from foredraft.params import Schedule
from foredraft.policy.cost import StepCost
from foredraft.policy.hold import is_rich
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
from foredraft.wire.pulse import Pulse
from verify_service.answers import Answers
from verify_service.budgets import Budgets
from verify_service.holder import Hold, Holder
from verify_service.host_steps import HostSteps
from verify_service.scheduler import Refused, Scheduler
from verify_service.sequence import VerifySequence
from verify_service.step import Outcome
from verify_service.steps import StepDone, Steps
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
class _Started:
    """A step that has not been finished yet, and what it was started with."""

    at: float
    sequences: list[VerifySequence]
    most_rows: int
    held: Hold
    budget: VerifyBudget
    prepare_us: int


class StepLoop:
    """Owns the model, the KV and all sequences; lives in one thread.

    A step is started, and finished once as many others are behind it as `Steps.behind` says. What
    has to know what became of all of them calls `_settle` first: a hold, a prompt, a preemption.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        cost: StepCost,
        publish: Callable[[int, Response], None],
        trace: StepTrace | None = None,
        steps: Steps | None = None,
    ) -> None:
        """``steps``: how they are run; by the host if None."""
        self.inbox: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self.pulse = Pulse()
        self._runner = runner
        self._scheduler = scheduler
        self._cost = cost
        self._run: Steps = steps or HostSteps(runner, scheduler.reservations)
        self._started: deque[_Started] = deque()
        self.answers = Answers(publish)
        self._trace = trace
        self._budgets = Budgets()
        self._holder = Holder(scheduler, self._take_within)
        self._steps = 0
        self._faults = 0  # steps in a row that failed
        self._ended = 0.0  # the newest step that was finished
        self._began: float | None = None  # the step before, unless something else came between
        self._stopping = False

    def stop(self) -> None:
        """End the loop after the current step; callable from any thread."""
        self.inbox.put(None)

    def run(self) -> None:
        """Until stopped: the loop that the budget's schedule asks for."""
        while not self._stopping:
            if self._budget().schedule is Schedule.SERIAL:
                self.serial()
            else:
                self.overlapped()
        self.answers.tell()

    def serial(self) -> None:
        """Draft, then verify: a step waits for complete guesses of its very roots."""
        self._prepare()
        self._step(self._hold(VerifySequence.awaits_drafts))

    def overlapped(self) -> None:
        """The drafter works on while the target steps: what a hit has left is verified at once.

        A step that has too little to verify is held, but only for as long as that pays.
        """
        self._prepare()
        self._step(self._hold(_lacks_guesses))

    def _budget(self) -> VerifyBudget:
        return self._budgets.in_force(sequence.stream for sequence in self._scheduler)

    def _hold(self, lacks: Callable[[VerifySequence], bool]) -> Hold:
        plain_us = self._cost(len(self._scheduler.ready())) * 1000
        budget = self._budget()
        if self._started and not self._runs_ahead(budget, plain_us):
            self._settle()
        return self._holder.hold(budget, plain_us, lacks)

    def _runs_ahead(self, budget: VerifyBudget, plain_us: float) -> bool:
        """True if the next step may start before it is known what became of those that run.

        Guesses are worth a wait below roots that are known only.
        """
        ready = self._scheduler.ready()
        may_wait = self._holder.may_hold(budget, plain_us) and any(s.speculates for s in ready)
        return not may_wait and self._run.may_follow(ready)

    def _prepare(self) -> None:
        """Take what came, start what fits, run at most one chunk of one prompt."""
        self._take_arrivals()
        if self._scheduler.is_short:
            self._settle()
        self._scheduler.make_room()
        self._scheduler.admit()
        if (sequence := self._scheduler.next_prefill()) is not None:
            self._settle()
            self._began = None
            self._prefill(sequence)

    def _step(self, held: Hold) -> None:
        started = time.perf_counter()
        ready = self._scheduler.ready()
        if not ready:
            self._settle()
            self.answers.tell()
            return
        budget = self._budget()
        try:
            most_rows = self._run.start(ready, budget.max_nodes, self._cost)
        except Exception as error:
            self._fail(ready, error)
            return
        prepare_us = round((time.perf_counter() - started) * 1e6)
        self._started.append(_Started(started, ready, most_rows, held, budget, prepare_us))
        self.answers.tell()
        while len(self._started) > self._run.behind:
            self._finish()

    def _settle(self) -> None:
        """Finish all steps that were started."""
        while self._started:
            self._finish()

    def _finish(self) -> None:
        """Take in what the oldest step did, and say so."""
        step = self._started.popleft()
        try:
            with self.pulse.expecting(self._cost(step.most_rows)):
                done = self._run.finish()
        except Exception as error:
            sequences = [*step.sequences, *(s for later in self._started for s in later.sequences)]
            self._started.clear()
            self._fail({id(sequence): sequence for sequence in sequences}.values(), error)
            return
        self._faults = 0
        self._conclude(step, done)

    def _conclude(self, step: _Started, done: StepDone) -> None:
        outcomes, held = done.outcomes, step.held
        for outcome in outcomes:
            if outcome.commit is None or outcome.commit.finish is not None:
                self._scheduler.finish(outcome.sequence)
        began, self._ended = max(step.at, self._ended), time.perf_counter()
        timings = replace(
            done.timings,
            held_us=held.microseconds,
            hold_limit_us=held.limit_us,
            prepare_us=step.prepare_us,
            period_us=self._end_period(done.rows, held),
            row_us=round(self._cost.per_row(done.rows) * 1000),
        )
        if step.budget.drafting and step.budget.max_nodes:
            self._judge(held, outcomes)
        self._steps += 1
        for stream in {outcome.sequence.stream for outcome in outcomes}:
            mine = [outcome for outcome in outcomes if outcome.sequence.stream == stream]
            commits = tuple(outcome.commit for outcome in mine if outcome.commit is not None)
            free = self._scheduler.reservations.free_blocks
            promised = done.promised.get(stream, 0.0)
            self.answers.put(stream, StepResult(self._steps, commits, timings, free, promised))
            self._refuse(stream, (o.error for o in mine if o.error is not None))
        if self._trace is not None:
            described = self._describe(timings, outcomes, held, step.budget, done.rows)
            self._trace.stepped(began, described)

    def _describe(
        self,
        timings: StepTimings,
        outcomes: Sequence[Outcome],
        held: Hold,
        budget: VerifyBudget,
        rows: int,
    ) -> Step:
        return Step(
            number=self._steps,
            timings=timings,
            commits=[(o.sequence.key, o.commit) for o in outcomes if o.commit is not None],
            rows=rows,
            budget=budget,
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

    def _end_period(self, rows: int, held: Hold) -> int:
        """Microseconds since the step before ended, learned as a step's cost; 0 if not known."""
        now, before = time.perf_counter(), self._began
        self._began = now
        if before is None:
            return 0
        self._cost = self._cost.observed(rows, (now - before) * 1000, held.microseconds / 1000)
        return round((now - before) * 1e6)

    def _judge(self, held: Hold, outcomes: Sequence[Outcome]) -> None:
        saved = sum(
            o.commit is not None and o.commit.accepted > 0 and o.sequence.key in held.waited_for
            for o in outcomes
        )
        self._holder.stepped(held, saved=saved, sequences=len(outcomes))

    def _prefill(self, sequence: VerifySequence) -> None:
        started = time.perf_counter()
        self.answers.tell()
        try:
            with self.pulse.expecting(self._cost(max(self._runner.chunk, _REPLAY_ROWS))):
                self._feed(sequence)
        except Exception as error:
            self._fail((sequence,), error)
        if self._trace is not None:
            self._trace.prefilled(sequence.key, started, sequence.ready)

    def _feed(self, sequence: VerifySequence) -> None:
        """Run one chunk of the prompt, or one chain of tokens that were committed before.

        The prompt's last token was a root when the sequence first ran, so it is a row of a chain:
        a prefill may round it differently.
        """
        prompt_end = len(sequence.opened.prompt) - 1
        start = sequence.fed
        if start < prompt_end:
            end = min(start + self._runner.chunk, prompt_end)
            chunk = sequence.blocks, sequence.tokens[start:end], start
            if sequence.scoring:
                sequence.score(start, self._runner.prefill_scored(*chunk))
            else:
                self._runner.prefill(*chunk)
        else:
            end = min(start + _REPLAY_ROWS, len(sequence.tokens) - 1)
            paths = [tuple(range(start, slot + 1)) for slot in range(start, end)]
            chain = SequenceRows(sequence.blocks, start, sequence.tokens[start:end], paths)
            self._runner.forward([chain])
        sequence.fed = end

    def _take_arrivals(self) -> None:
        """All that wait; without any sequence, the next one that comes."""
        if len(self._scheduler) == 0:
            self._settle()
            self._began = None
            self.answers.tell()
            self._take(self.inbox.get())
        while not self.inbox.empty():
            self._take(self.inbox.get())

    def _take_within(self, seconds: float) -> bool:
        """Take the next message, if one comes in time; False if not, or if it was the last."""
        self.answers.tell()
        try:
            self._take(self.inbox.get(timeout=seconds))
        except queue.Empty:
            return False
        return not self._stopping

    def _take(self, arrival: Arrival | None) -> None:
        if arrival is None:
            self._stopping = True
            return
        stream = arrival.stream
        match arrival.request:
            case None:
                self._scheduler.close_stream(stream)
                self._budgets.forget(stream)
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
                self._holder.told(self._budget(), budget)
                self._budgets.set(stream, budget)
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
            self._run.attach(sequence, group)
            if sequence.drafted:
                self._holder.guesses_complete()

    def _refuse(self, stream: int, errors: Iterable[SequenceError]) -> None:
        listed = tuple(errors)
        if listed:
            self.answers.put(stream, SequenceErrors(listed))
            if self._trace is not None:
                self._trace.refused((stream, error.seq_id) for error in listed)


def _lacks_guesses(sequence: VerifySequence) -> bool:
    """True if guesses are on their way and too few are here."""
    return sequence.awaits_drafts() and not is_rich(sequence.tree.promise())
