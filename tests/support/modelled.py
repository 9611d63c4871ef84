"""A draft model and a target with known acceptance and known times, and no clock but a number."""

from __future__ import annotations

from dataclasses import dataclass, replace

from draft_service.draft_kv import DraftKV
from draft_service.drafter import Drafter
from draft_service.open_options import Option
from foredraft.params import SamplingParams, Speculation
from foredraft.policy.bucket import model_bucket
from foredraft.policy.pace import Pace
from foredraft.policy.selection import Candidate, select_nodes
from foredraft.tree.node_id import child_id
from foredraft.tree.token_tree import TokenTree
from foredraft.wire.messages import (
    Commit,
    Commits,
    DraftBudget,
    Limits,
    ModelInfo,
    OpenSequence,
    OpenSequences,
)
from support.scripted_target import groups_of

VOCAB = 1000
INFO = ModelInfo("modelled", "hash", VOCAB, context_length=1 << 20, eos_token_ids=(2,))
LIMITS = Limits(64, 64, 32)


@dataclass(frozen=True)
class Times:
    """Milliseconds of the target's step and the draft's pass, and what a row adds to each."""

    step: float
    step_row: float
    draft: float
    draft_row: float


def right_token(place: int) -> int:
    """What the target says after the path with that id."""
    return 3 + place % (VOCAB - 3)


def guesses(place: int, shares: tuple[float, ...]) -> list[int]:
    """The draft's best tokens; the target's is the k-th of them with the k-th share."""
    right = right_token(place)
    wrong = [3 + (right - 3 + step) % (VOCAB - 3) for step in range(1, len(shares) + 1)]
    drawn = child_id(place, VOCAB) / 2.0**64
    for rank, share in enumerate(shares):
        drawn -= share
        if drawn < 0:
            return [*wrong[:rank], right, *wrong[rank:-1]]
    return wrong


class ModelledDraft:
    """Stands in for `ModelDrafter`: a pass only moves the clock.

    ``shares`` may be changed; ``looks`` are the places that each pass has looked at.
    """

    def __init__(self, times: Times, shares: tuple[float, ...]) -> None:
        self.shares = shares
        self.looks: list[int] = []
        self.caught_up = 0
        self.seconds = 0.0
        self._times = times

    @property
    def passes(self) -> int:
        return len(self.looks)

    def clock(self) -> float:
        return self.seconds

    def can_follow(self, sequence) -> bool:
        return sequence.wants_model

    def prepare(self, sequence) -> bool:
        if sequence.kv is None:
            sequence.kv = DraftKV(None)
            sequence.kv.fed = len(sequence.tokens) - 1
        return True

    def release(self, sequence) -> None:
        sequence.kv = None

    def move(self, sequence, moves) -> None:
        pass

    def reach(self, sequence) -> int:
        return LIMITS.max_depth

    def lags(self, sequence) -> bool:
        return sequence.unfed > 32

    def catch_up(self, sequence) -> None:
        self.caught_up += 1
        sequence.kv.fed = len(sequence.tokens) - 1
        self.seconds += self._times.draft / 1000

    def evaluate(self, evaluations, meanwhile) -> None:
        meanwhile()
        rows = 0
        for evaluation in evaluations:
            sequence = evaluation.sequence
            root_id = sequence.tree.root_id
            nodes = [node for node in evaluation.nodes if node != root_id]
            sequence.kv.place(nodes, len(sequence.tokens))
            rows += sequence.unfed + len(nodes)
            sequence.kv.fed = len(sequence.tokens)
            sequence.evaluated.update(evaluation.nodes)
            for node_id in evaluation.nodes:
                tokens = guesses(node_id, self.shares)
                found = [
                    Option(token, model_bucket(share, rank))
                    for rank, (token, share) in enumerate(zip(tokens, self.shares, strict=True))
                ]
                sequence.note_model_options(node_id, found)
        self.looks.append(sum(len(evaluation.nodes) for evaluation in evaluations))
        self.seconds += (self._times.draft + self._times.draft_row * (rows - 1)) / 1000


class SerialRun:
    """Draft, then verify, with prices told as a gateway tells them; ``fixed``: by threshold alone.

    tokens, milliseconds: since `forget`; tokens are expected ones, given the nodes verified.
    """

    def __init__(
        self,
        times: Times,
        shares: tuple[float, ...],
        sequences: int = 1,
        fixed: float | None = None,
    ) -> None:
        self.draft = ModelledDraft(times, shares)
        self.drafter = Drafter(INFO, LIMITS, self.draft, clock=self.draft.clock)
        self._times = times
        self._fixed = fixed
        self._pace = Pace()
        params = SamplingParams(max_tokens=1 << 19)
        prompts = [(5, 6, 7, 8 + number) for number in range(sequences)]
        opened = [
            OpenSequence(number, 0, prompt, params, speculation=Speculation.MODEL)
            for number, prompt in enumerate(prompts)
        ]
        self._trees = [TokenTree(o.seq_id, 0, o.prompt, 64, 32) for o in opened]
        self._lengths = [len(prompt) for prompt in prompts]
        self._budget = DraftBudget(64, 32, 0.05 if fixed is None else fixed)
        self.drafter.handle(0, self._budget)
        self.drafter.handle(0, OpenSequences(tuple(opened)))
        self.forget()

    def forget(self) -> None:
        self.tokens = self.milliseconds = 0.0
        self.steps = 0

    def rate(self, steps: int) -> float:
        """Tokens per millisecond of so many steps."""
        self.forget()
        for _ in range(steps):
            self.step()
        return self.tokens / self.milliseconds

    def step(self) -> None:
        began = self.draft.seconds
        while self.drafter.busy:
            for group in groups_of(self.drafter.draft()):
                columns = zip(
                    group.parent_ids, group.tokens, group.confidences, group.sources, strict=True
                )
                for column in columns:
                    self._trees[group.seq_id].add(*column)
        chosen = self._select()
        rows = len(self._trees) + len(chosen)
        self.draft.seconds += self._cost(rows) / 1000
        commits = tuple(self._commit(index, chosen) for index in range(len(self._trees)))
        period = (self.draft.seconds - began) * 1000
        self.milliseconds += period
        self.steps += 1
        self._tell(sum(len(commit.tokens) for commit in commits), period)
        self.drafter.handle(0, Commits(commits))

    def _cost(self, rows: int) -> float:
        return self._times.step + self._times.step_row * (rows - len(self._trees))

    def _select(self) -> set[int]:
        candidates = (
            Candidate(index, node.id, node.depth, node.survival)
            for index, tree in enumerate(self._trees)
            for node in tree.walk()
        )
        return {node.node_id for node in select_nodes(candidates, len(self._trees), 64, self._cost)}

    def _commit(self, index: int, chosen: set[int]) -> Commit:
        tree, position = self._trees[index], self._lengths[index]
        survivals = {tree.root_id: 1.0}
        for node in tree.walk():
            if node.id in chosen:
                rank = guesses(node.parent_id, self.draft.shares).index(node.token)
                survivals[node.id] = survivals[node.parent_id] * self.draft.shares[rank]
        self.tokens += sum(survivals.values())
        tokens, place = [], tree.root_id
        while place in survivals:
            tokens.append(right_token(place))
            place = child_id(place, tokens[-1])
        tree.advance(tokens)
        self._lengths[index] += len(tokens)
        return Commit(index, 0, position, tuple(tokens), accepted=len(tokens) - 1)

    def _tell(self, tokens: int, period_ms: float) -> None:
        if self._fixed is not None:
            return
        count = len(self._trees)
        self._pace = self._pace.after(
            tokens, count, period_ms, self._times.step_row, self._cost(count)
        )
        prices = self._pace.prices(count)
        budget = replace(
            self._budget,
            tokens_per_ms=(prices.tokens_per_ms,),
            tokens_per_row=(prices.tokens_per_row,),
        )
        self.drafter.handle(0, budget)
