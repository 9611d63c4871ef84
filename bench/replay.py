"""The verifier's part against recorded answers: what each way of guessing would have brought.

Drafter, trees, selection and ends are the service's own. Only the target's pass is left out,
because what it would decide is known.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.cells import STREAM, Cell
from bench.guess_counts import GuessCounts
from bench.loops import loop_start
from bench.recorded import Recorded
from bench.step_model import PricedBudget, StepModel, Work
from draft_service.answers import Answer, Drafts
from foredraft.cli.faults import CommandError
from foredraft.params import FinishReason
from foredraft.policy.selection import Candidate, select_nodes
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    Commit,
    Commits,
    Limits,
    ModelInfo,
    OpenSequence,
    OpenSequences,
    Source,
)
from verify_service.acceptance import apply_stops
from verify_service.sequence import VerifySequence

if TYPE_CHECKING:
    from bench.reader import Reader

Cost = Callable[[int], float]


@dataclass(slots=True)
class Tally:
    """What a replay came to.

    tokens: delivered ones. loop_tokens, loop_steps: of steps that begin in a runaway repetition.
    steps: of sequences. rounds: steps of the target, each for all sequences at hand.
    rows: of all rounds: roots and verified nodes.
    drafted: nodes that the drafter sent.
    opening: what the drafter spent on prompts and the first guesses after them; later: after.
    """

    answers: int = 0
    tokens: int = 0
    steps: int = 0
    loop_tokens: int = 0
    loop_steps: int = 0
    rounds: int = 0
    rows: int = 0
    drafted: int = 0
    opening: Work = field(default_factory=Work)
    later: Work = field(default_factory=Work)
    guesses: dict[Source, GuessCounts] = field(
        default_factory=lambda: {source: GuessCounts() for source in Source}
    )


class Replayed:
    """One answer on its way: the verifier's sequence, and the text that it is bound to become."""

    def __init__(
        self, opened: OpenSequence, answer: Recorded, target: ModelInfo, limits: Limits
    ) -> None:
        self.opened = opened
        self.sequence = VerifySequence.open(STREAM, opened, limits, target)
        end = target.eos_token_ids[:1] if answer.finish is FinishReason.STOP else ()
        self._text = (*opened.prompt, *answer.tokens, *end)
        loop = loop_start(answer.tokens)
        self._loop = len(opened.prompt) + loop if loop < len(answer.tokens) else math.inf
        self.done = len(self._text) == len(opened.prompt)

    def candidates(self, index: int) -> list[Candidate]:
        """All nodes that could be verified now."""
        return [
            Candidate(index, node.id, node.depth, node.survival)
            for node in self.sequence.tree.walk()
            if node.depth <= self.sequence.useful_depth
        ]

    def step(self, chosen: Collection[int], tally: Tally) -> Commit:
        """Verify the chosen nodes: the path that agrees with the text, and one token more."""
        sequence = self.sequence
        position = len(sequence.tokens)
        ahead = self._text[position:]
        path = self._follow(ahead, chosen, tally.guesses)
        ending = apply_stops(ahead[: len(path) + 1], sequence.budget, sequence.stops)
        orphans, sequence.orphans = tuple(sequence.orphans), []
        sequence.advance(ending.tokens)
        self.done = ending.finish is not None or len(sequence.tokens) == len(self._text)
        tally.steps += 1
        tally.tokens += len(ending.tokens)
        if position >= self._loop:
            tally.loop_steps += 1
            tally.loop_tokens += len(ending.tokens)
        return Commit(
            self.opened.seq_id,
            self.opened.incarnation,
            position,
            ending.tokens,
            verified=len(chosen),
            accepted=min(len(path), len(ending.tokens)),
            orphans=orphans,
        )

    def _follow(
        self, ahead: Sequence[int], chosen: Collection[int], guesses: Mapping[Source, GuessCounts]
    ) -> list[int]:
        """Chosen nodes that agree with the text; all whose parents do are judged."""
        tree = self.sequence.tree
        path: list[int] = []
        for depth, token in enumerate(ahead, start=1):
            place = path[-1] if path else tree.root_id
            children = [tree.nodes[child] for child in tree.children(place) if child in chosen]
            for node in children:
                guesses[node.source].judge(depth, node.confidence, node.token == token)
            right = next((node.id for node in children if node.token == token), None)
            if right is None:
                break
            path.append(right)
        return path


class Replay:
    """Plays answers side by side, each step of all as one round: draft until complete, verify.

    ``cost``: milliseconds of a step of so many rows, which decides how many nodes it verifies.
    ``step``: from which a self-tuned cell's drafter is told what time is worth.
    """

    def __init__(
        self,
        cell: Cell,
        target: ModelInfo,
        at_once: int,
        cost: Cost,
        model: Reader | None = None,
        step: StepModel | None = None,
    ) -> None:
        self._reader = model
        self._drafter = cell.drafter(target, at_once, model)
        self._target = target
        self._limits = cell.limits(at_once)
        self._speculation = cell.draft.speculation
        self._cost = cost
        self._running: dict[int, Replayed] = {}
        self._numbers = itertools.count(1)
        self._priced: PricedBudget | None = None
        if step is not None and cell.min_survival is None:
            self._priced = PricedBudget(cell.budget(at_once), step)
        self._before_step = Work()
        self.tally = Tally()

    def play(self, answers: Sequence[Recorded]) -> Tally:
        """Until all are done."""
        waiting = deque(answers)
        while waiting or self._running:
            self._draft(self.tally.later)
            while waiting and len(self._running) < self._limits.max_sequences:
                self._open(waiting.popleft())
            self._draft(self.tally.opening)
            if self._running:
                self._round()
        if self._reader is not None:
            self.tally.opening.model_us += round(self._reader.seconds * 1e6)
        return self.tally

    def _open(self, answer: Recorded) -> None:
        question = answer.question
        opened = OpenSequence(
            next(self._numbers),
            0,
            question.prompt,
            question.params,
            speculation=self._speculation,
        )
        replayed = Replayed(opened, answer, self._target, self._limits)
        self.tally.answers += 1
        if not replayed.done:
            self._take(self._drafter.handle(STREAM, OpenSequences((opened,))), Work())
            self._running[opened.seq_id] = replayed

    def _draft(self, work: Work) -> None:
        """Let the drafter work until it has nothing more to do."""
        while self._drafter.busy:
            self._take(self._drafter.draft(), work)

    def _take(self, answers: Sequence[Answer], work: Work) -> None:
        for answer in answers:
            if not isinstance(answer.content, Drafts):
                refused = "; ".join(error.message for error in answer.content.errors)
                raise CommandError(f"the drafter refuses an answer: {refused}")
            work.add(answer.content.timings)
            self._before_step.add(answer.content.timings)
            for batch in answer.content.batches.values():
                for group in batch.groups:
                    self._running[group.seq_id].sequence.attach(group)
                    self.tally.drafted += len(group.tokens)

    def _round(self) -> None:
        """One step of the target for all sequences at hand."""
        running = list(self._running.values())
        candidates = (node for index, one in enumerate(running) for node in one.candidates(index))
        most = self._limits.max_nodes * len(running)
        chosen: list[set[int]] = [set() for _ in running]
        for node in select_nodes(candidates, len(running), most, self._cost):
            chosen[node.sequence].add(node.node_id)
        self.tally.rounds += 1
        self.tally.rows += len(running) + sum(map(len, chosen))
        commits = [one.step(nodes, self.tally) for one, nodes in zip(running, chosen, strict=True)]
        self._tell(running, commits)
        self._price(commits, len(running) + sum(map(len, chosen)))

    def _tell(self, running: Sequence[Replayed], commits: Sequence[Commit]) -> None:
        """What the gateway tells the drafter after a step."""
        ended = [one.opened for one in running if one.done]
        for opened in ended:
            del self._running[opened.seq_id]
        closes = tuple(CloseSequence(opened.seq_id, opened.incarnation) for opened in ended)
        last = tuple(commit for commit in commits if commit.seq_id not in self._running)
        self._drafter.handle(STREAM, CloseDrafts(closes, last))
        left = tuple(commit for commit in commits if commit.seq_id in self._running)
        self._take(self._drafter.handle(STREAM, Commits(left)), self.tally.later)

    def _price(self, commits: Sequence[Commit], rows: int) -> None:
        """What the gateway tells the drafter of the time that the step and its guesses took."""
        work, self._before_step = self._before_step, Work()
        if self._priced is not None:
            tokens = sum(len(commit.tokens) for commit in commits)
            budget = self._priced.after(tokens, len(commits), rows, work)
            self._take(self._drafter.handle(STREAM, budget), self.tally.later)
