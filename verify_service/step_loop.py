"""The loop of the engine thread: take messages, prefill a chunk, run a step, publish."""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foredraft.engine.runner import Runner
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
from verify_service.draft_lane import DraftLane
from verify_service.holder import Hold, Holder
from verify_service.host_steps import HostSteps
from verify_service.prefill import REPLAY_ROWS, feed
from verify_service.scheduler import Refused, Scheduler
from verify_service.sequence import VerifySequence
from verify_service.step import Outcome
from verify_service.step_clock import Started, StepClock
from verify_service.steps import StepDone, Steps
from verify_service.trace import Step, StepTrace

log = logging.getLogger(__name__)

# Until when a step that runs leaves time for guesses: what it should take is learned from steps
# that were started so, and must not grow by that.
_LEAVES_TIME = 0.75
_MOST_FAULTS = 2  # passes in a row that may fail before the model is given up


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message of one stream; None says that the stream has ended."""

    stream: int
    request: Request | None


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
        lane: Path | None = None,
    ) -> None:
        """``steps``: how they are run; by the host if None. ``lane``: to a drafter on this host."""
        self.inbox: queue.SimpleQueue[Arrival | NodeBatch | None] = queue.SimpleQueue()
        self.pulse = Pulse()
        self._runner = runner
        self._scheduler = scheduler
        self._clock = StepClock(cost)
        self._steps: Steps = steps or HostSteps(runner, scheduler.reservations)
        self._started: deque[Started] = deque()
        self.answers = Answers(publish)
        self._trace = trace
        self._budgets = Budgets()
        self._lane = DraftLane(lane, self.inbox.put)
        self._holder = Holder(scheduler, self._take_within)
        self._made = 0  # steps
        self._faults = 0  # steps in a row that failed
        self._stopping = False

    def stop(self) -> None:
        """End the loop after the current step; callable from any thread."""
        self.inbox.put(None)

    def run(self) -> None:
        """Until stopped: the loop that the budget's schedule asks for."""
        self._lane.open()
        while not self._stopping:
            if self._budget().schedule is Schedule.SERIAL:
                self.serial()
            else:
                self.overlapped()
        self._settle()
        self.answers.tell()
        self._lane.close()

    def serial(self) -> None:
        """Draft, then verify: a step waits for complete guesses of its very roots."""
        self._prepare()
        self._step(self._hold(VerifySequence.awaits_drafts))

    def overlapped(self) -> None:
        """The drafter works on while the target steps: what a hit has left is verified at once.

        A step that has too little to verify is held, but only for as long as that pays.
        """
        self._prepare()
        self._linger()
        self._step(self._hold(_lacks_guesses))

    def _budget(self) -> VerifyBudget:
        return self._budgets.in_force(sequence.stream for sequence in self._scheduler)

    def _hold(self, lacks: Callable[[VerifySequence], bool]) -> Hold:
        plain_us = self._clock.cost(len(self._scheduler.ready())) * 1000
        budget = self._budget()
        if self._started and not self._runs_ahead(budget, plain_us):
            self._settle()
        return self._holder.hold(budget, plain_us, lacks)

    def _linger(self) -> None:
        """Let guesses come for the next step until the one that runs has not much longer to run.

        That costs nothing; what came later would have to wait for the step after the next.
        """
        budget = self._budget()
        if not (self._started and budget.drafting and budget.max_nodes):
            return
        running = self._started[-1]
        left_ms = _LEAVES_TIME * self._clock.cost(len(running.sequences)) - self._clock.host_ms
        until = max(running.at, self._clock.ended) + left_ms / 1000
        while any(sequence.awaits_drafts() for sequence in self._scheduler.ready()):
            left = until - time.perf_counter()
            if left <= 0 or not self._take_within(left):
                return

    def _runs_ahead(self, budget: VerifyBudget, plain_us: float) -> bool:
        """True if the next step may start before it is known what became of those that run.

        Guesses are worth a wait below roots that are known only.
        """
        ready = self._scheduler.ready()
        may_wait = self._holder.may_hold(budget, plain_us) and any(s.speculates for s in ready)
        return not may_wait and self._steps.may_follow(ready)

    def _prepare(self) -> None:
        """Take what came, start what fits, run at most one chunk of one prompt."""
        self._take_arrivals()
        if self._scheduler.is_short:
            self._settle()
        self._scheduler.make_room()
        self._scheduler.admit()
        if (sequence := self._scheduler.next_prefill()) is not None:
            self._settle()
            self._clock.interrupted()
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
            most_rows = self._steps.start(ready, budget.max_nodes, self._clock.cost)
        except Exception as error:
            self._fail(ready, error)
            return
        if self._steps.stalled:
            self._clock.interrupted()
        prepare_us = round((time.perf_counter() - started) * 1e6)
        self._started.append(Started(started, ready, most_rows, held, budget, prepare_us))
        self.answers.tell()
        while len(self._started) > self._steps.behind:
            self._finish()

    def _settle(self) -> None:
        """Finish all steps that were started."""
        while self._started:
            self._finish()

    def _finish(self) -> None:
        """Take in what the oldest step did, and say so."""
        step = self._started.popleft()
        try:
            with self.pulse.expecting(self._clock.cost(step.most_rows)):
                done = self._steps.finish()
        except Exception as error:
            lost = {s.key: s for each in (step, *self._started) for s in each.sequences}
            self._started.clear()
            self._fail(filter(self._scheduler.reservations.holds, lost.values()), error)
            return
        self._faults = 0
        self._conclude(step, done)

    def _conclude(self, step: Started, done: StepDone) -> None:
        outcomes = done.outcomes
        self._lane.tell(outcomes, step.budget)  # first: the drafter works on meanwhile
        for outcome in outcomes:
            if outcome.commit is None or outcome.commit.finish is not None:
                self._scheduler.finish(outcome.sequence)
        began, timings = self._clock.end(step, done)
        if outcomes and step.budget.drafting and step.budget.max_nodes:
            self._judge(step.held, outcomes)
        self._made += 1
        for stream in {outcome.sequence.stream for outcome in outcomes}:
            mine = [outcome for outcome in outcomes if outcome.sequence.stream == stream]
            commits = tuple(outcome.commit for outcome in mine if outcome.commit is not None)
            free = self._scheduler.reservations.free_blocks
            promised = done.promised.get(stream, 0.0)
            told = self._lane.covers(mine)
            result = StepResult(self._made, commits, timings, free, promised, told)
            self.answers.put(stream, result)
            self._refuse(stream, (o.error for o in mine if o.error is not None))
        if self._trace is not None:
            self._trace.stepped(began, self._describe(step, done, timings))

    def _describe(self, step: Started, done: StepDone, timings: StepTimings) -> Step:
        commits = [(o.sequence.key, o.commit) for o in done.outcomes if o.commit is not None]
        return Step(
            number=self._made,
            timings=timings,
            commits=commits,
            rows=done.rows,
            budget=step.budget,
            hold_limit_us=step.held.limit_us,
            waited_for=len(step.held.waited_for),
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
            with self.pulse.expecting(self._clock.cost(max(self._runner.longest, REPLAY_ROWS))):
                feed(self._runner, sequence)
        except Exception as error:
            self._fail((sequence,), error)
        if self._trace is not None:
            self._trace.prefilled(sequence.key, started, sequence.ready)

    def _take_arrivals(self) -> None:
        """All that wait; without any sequence, the next one that comes."""
        if len(self._scheduler) == 0:
            self._settle()
            self._clock.interrupted()
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

    def _take(self, arrival: Arrival | NodeBatch | None) -> None:
        """A message of a stream, or guesses that came by the lane; None: it is time to stop."""
        if arrival is None:
            self._stopping = True
            return
        if isinstance(arrival, NodeBatch):
            for stream, group in self._lane.heard(arrival):
                self._attach(stream, (group,))
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
            self._steps.attach(sequence, group)
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
