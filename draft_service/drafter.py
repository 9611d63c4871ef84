"""All sequences of the service: takes messages in, gives guesses out.

Synchronous and single-threaded; `DraftLoop` runs it beside the event loop. One call of `draft`
does one piece of work, so that commits which came in meanwhile re-root the trees between pieces.
After the first complete answer for a root a sequence rests until its next commit, or drafts ahead.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from draft_service.agenda import Agenda
from draft_service.answers import Answer, WorkClock, collect
from draft_service.budgets import Budgets
from draft_service.expansion import Frontier
from draft_service.growth import Growth
from draft_service.model_pass import Pacer, Waiting, plan_pass, price
from draft_service.outcomes import Outcomes
from draft_service.refusal import bad_commit, bad_opening, no_room
from draft_service.sequence import WIDTH, DraftSequence, Key
from draft_service.suffix_store import SuffixStore
from foredraft.policy.calibration import Calibration
from foredraft.wire.codec.draft import Request
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    Commit,
    Commits,
    DraftBudget,
    Limits,
    ModelInfo,
    Nack,
    OpenSequence,
    OpenSequences,
    SequenceError,
)

if TYPE_CHECKING:
    from draft_service.model_drafter import ModelDrafter  # torch: only where a model is served

log = logging.getLogger(__name__)


class Drafter:
    """The drafting core. ``model`` None: suffix guesses only. ``store`` is off unless given.

    width: different guesses of the model at one place. clock: tells seconds.
    burden: what a pass of the model costs those who wait for it, in its own durations.
    """

    def __init__(
        self,
        target: ModelInfo,
        limits: Limits,
        model: ModelDrafter | None = None,
        store: SuffixStore | None = None,
        *,
        width: int = WIDTH,
        clock: Callable[[], float] = perf_counter,
        burden: float = 1.0,
    ) -> None:
        self._width = width
        self._target = target
        self._limits = limits
        self._model = model
        self._store = SuffixStore(0) if store is None else store
        self._calibration = Calibration()
        self._budgets = Budgets(limits, priced=model is not None)
        self._sequences: dict[Key, DraftSequence] = {}
        self._by_name: dict[tuple[int, int], DraftSequence] = {}  # seq_id, incarnation
        self._agenda = Agenda()
        self._chunk_next = False
        self._now = clock
        self._clock = WorkClock()
        self._pacer = Pacer(clock, burden)
        self._growth = Growth(self._agenda, self._budgets, self._pacer, model)
        self._outcomes: defaultdict[int, Outcomes] = defaultdict(Outcomes)  # by stream

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def busy(self) -> bool:
        """True while `draft` has something to do."""
        return self._agenda.busy or self._store.busy

    def handle(self, stream: int, request: Request) -> list[Answer]:
        """Take in one message; what cannot be followed is answered per sequence."""
        self._learn()
        errors: list[SequenceError | None] = []
        match request:
            case OpenSequences(sequences):
                errors = [self._open(stream, opened) for opened in sequences]
            case Commits(commits):
                errors = [self._commit(stream, commit) for commit in commits]
            case DraftBudget():
                self._allow(stream, request)
            case CloseDrafts(closes, last):
                errors = [self._commit(stream, commit) for commit in last]
                for close in closes:
                    self._finish(stream, close)
        refused = tuple(error for error in errors if error is not None)
        return [Answer(stream, Nack(refused))] if refused else []

    def follow(self, lane: int, commits: Commits) -> None:
        """Take in commits that came by a lane; guesses for these sequences go by it from now on.

        What does not continue a sequence is left to the gateway, which tells it in order.
        """
        self._learn()
        for commit in commits.commits:
            sequence = self._by_name.get((commit.seq_id, commit.incarnation))
            if sequence is not None and bad_commit(commit, sequence, self._target) is None:
                sequence.lane = lane
                self._advance(sequence, commit)

    def end_lane(self, lane: int) -> None:
        """Guesses that would have gone by it are relayed."""
        for sequence in self._sequences.values():
            if sequence.lane == lane:
                sequence.lane = None

    def end_stream(self, stream: int) -> None:
        """Close all sequences of a stream."""
        for sequence in [s for s in self._sequences.values() if s.key[0] == stream]:
            self._close(sequence)
        self._budgets.forget(stream)
        self._outcomes.pop(stream, None)

    def draft(self) -> list[Answer]:
        """Do one piece of work: all suffix lookups that wait, or one pass of the model.

        Where there are no lookups, a slice of finished requests is indexed, too.
        """
        if self._agenda.fresh:
            self._ask_suffixes()
            return self._flush()
        self._store.work()
        if self._model is not None and self._agenda.wants_model:
            try:
                self._run(self._model)
            except Exception:
                log.exception("the draft model failed; suffix guesses go on without it")
                self._drop_model(self._model)
        return self._flush()

    def _open(self, stream: int, opened: OpenSequence) -> SequenceError | None:
        key = (stream, opened.seq_id)
        known = self._sequences.get(key)
        if known is not None:
            if known.opened.incarnation > opened.incarnation:
                return None
            self._close(known)
        if len(self._sequences) >= self._limits.max_sequences:
            return no_room(opened, self._limits)
        fault = bad_opening(opened, self._target)
        if fault is not None:
            return fault
        sequence = DraftSequence(
            stream,
            opened,
            self._target,
            self._limits,
            self._calibration,
            self._width,
            partial(self._store.of, opened.tenant),
        )
        self._sequences[key] = self._agenda.fresh[key] = sequence
        self._by_name[opened.seq_id, opened.incarnation] = sequence
        self._budgets.divide(len(self._sequences))
        return None

    def _allow(self, stream: int, budget: DraftBudget) -> None:
        """What was answered under another budget is looked at again.

        A target that waits for complete guesses commits nothing before they come.
        """
        if not self._budgets.set(stream, budget):
            return
        for key, sequence in self._sequences.items():
            if key[0] == stream:
                sequence.answered = sequence.announced = False
                self._agenda.fresh[key] = sequence

    def _commit(self, stream: int, commit: Commit) -> SequenceError | None:
        sequence = self._find(stream, commit.seq_id, commit.incarnation)
        if sequence is None:
            return None  # closed or refused already: what is in flight for it is dropped
        fault = bad_commit(commit, sequence, self._target)
        if fault is not None:
            self._close(sequence)
            return fault
        self._advance(sequence, commit)
        return None

    def _advance(self, sequence: DraftSequence, commit: Commit) -> None:
        new = commit.tokens[len(sequence.tokens) - commit.position :]
        if new:
            moves = sequence.commit(new)
            self._outcomes[sequence.key[0]].add(sequence.take_judged())
            if self._model is not None:
                self._model.move(sequence, moves)
            self._agenda.begin_anew(sequence)
        if commit.orphans:
            sequence.resend(commit.orphans)
            if sequence.has_unsent():
                self._agenda.due[sequence.key] = sequence

    def _find(self, stream: int, seq_id: int, incarnation: int) -> DraftSequence | None:
        sequence = self._sequences.get((stream, seq_id))
        if sequence is None or sequence.opened.incarnation != incarnation:
            return None
        return sequence

    def _finish(self, stream: int, close: CloseSequence) -> None:
        sequence = self._find(stream, close.seq_id, close.incarnation)
        if sequence is not None:
            self._store.keep(sequence.opened.tenant, sequence.tokens)
            self._close(sequence)

    def _close(self, sequence: DraftSequence) -> None:
        del self._sequences[sequence.key]
        self._by_name.pop((sequence.opened.seq_id, sequence.opened.incarnation), None)
        self._budgets.divide(len(self._sequences))
        self._agenda.forget(sequence.key)
        if self._model is not None:
            self._model.release(sequence)

    def _ask_suffixes(self) -> None:
        started = self._now()
        fresh, self._agenda.fresh = self._agenda.fresh, {}
        for sequence in fresh.values():
            self._growth.grow(sequence)
        self._clock.suffix += self._now() - started

    def _run(self, model: ModelDrafter) -> None:
        """One pass over frontiers or one chunk of prefill; drafting ahead can wait.

        They take turns, unless steps of the target wait for the frontiers.
        """
        working = self._agenda.working
        waiting = self._waiting(working)
        worth = price(waiting)
        started = self._now()
        if self._agenda.lagging and (not working or (worth == 0.0 and self._chunk_next)):
            self._catch_up(model)
        elif not self._extend(model, waiting or self._waiting(self._agenda.ahead), worth):
            return
        self._chunk_next = not self._chunk_next
        self._clock.model += self._now() - started
        self._clock.passes += 1

    def _waiting(self, frontiers: dict[Key, Frontier]) -> list[Waiting]:
        share = self._budgets.share
        known = [(self._sequences[key], nodes) for key, nodes in frontiers.items()]
        return [Waiting(sequence, nodes, share(sequence)) for sequence, nodes in known]

    def _extend(self, model: ModelDrafter, waiting: Sequence[Waiting], worth: float) -> bool:
        """One pass, if it pays; if not, those for whom a step waits have their answer."""
        began = self._now()
        planned = plan_pass(waiting, self._pacer.cost, worth)
        if worth > 0.0 and not self._pacer.allows(planned, worth):
            for one in waiting:
                if one.share.tokens_per_ms > 0.0:
                    one.sequence.answered = True
                    self._growth.grow(one.sequence)
            return False
        model.evaluate(planned.evaluations, self._learn)
        for evaluation in planned.evaluations:
            evaluation.sequence.passes += 1
            self._growth.grow(evaluation.sequence)
        self._pacer.made(planned, began)
        return True

    def _learn(self) -> None:
        """What commits have shown and nobody needs at once."""
        self._calibration.learn()
        for outcomes in self._outcomes.values():
            outcomes.count()

    def _catch_up(self, model: ModelDrafter) -> None:
        """The sequence that waited longest gets a chunk and goes to the end of the line."""
        key, sequence = next(iter(self._agenda.lagging.items()))
        del self._agenda.lagging[key]
        if model.can_follow(sequence) and model.prepare(sequence):
            began, unfed = self._now(), sequence.unfed
            model.catch_up(sequence)
            self._pacer.read(unfed - sequence.unfed, began)
            if model.lags(sequence):
                self._agenda.lagging[key] = sequence

    def _drop_model(self, model: ModelDrafter) -> None:
        self._model = self._growth.model = None
        self._budgets.forget_prices()
        for key in self._agenda.working:
            self._sequences[key].answered = True
            self._agenda.due[key] = self._sequences[key]
        for sequence in self._sequences.values():
            model.release(sequence)
            self._growth.without_model(sequence)
        self._agenda.drop_model()

    def _flush(self) -> list[Answer]:
        """One message per stream with all groups that are due."""
        if not self._agenda.due:
            return []
        due, self._agenda.due = self._agenda.due, {}
        timings, self._clock = self._clock.timings(), WorkClock()
        now = self._now()
        return collect(due.values(), timings, lambda stream: self._outcomes[stream].take(now))
