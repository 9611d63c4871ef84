"""One step: choose nodes, run the target over roots and nodes, keep what it agrees with."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import grpc
from torch import Tensor

from foredraft.engine.runner import Runner, SequenceRows
from foredraft.engine.sampling import choose, token_logprobs
from foredraft.engine.scoring import finite
from foredraft.policy.cost import StepCost
from foredraft.policy.selection import Candidate, select_nodes
from foredraft.tree.token_tree import Node
from foredraft.wire.errors import code_number
from foredraft.wire.messages import Commit, SequenceError, StepTimings, TokenLogprobs
from verify_service.acceptance import Ending, accept, apply_stops
from verify_service.reservations import Reservations
from verify_service.sequence import VerifySequence


@dataclass(frozen=True, slots=True)
class TreeRows:
    """Rows of one sequence in a step: row 0 is the root, then nodes, parents first."""

    sequence: VerifySequence
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]  # rows from the root down to the row, itself included
    promised: float = 0.0  # tokens that the nodes are thought to bring

    def engine_rows(self) -> SequenceRows:
        fed = self.sequence.fed
        slots = [tuple(fed + row for row in path) for path in self.paths]
        return SequenceRows(self.sequence.blocks, fed, self.tokens, slots)

    def below_root(self, row: int) -> list[int]:
        """Tokens from below the root down to a row."""
        return [self.tokens[above] for above in self.paths[row][1:]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did to one sequence: a commit, or a fault that ends it."""

    sequence: VerifySequence
    commit: Commit | None
    error: SequenceError | None = None


def select(
    ready: Sequence[VerifySequence], max_nodes: int, cost: StepCost, memory: Reservations
) -> list[TreeRows]:
    """Choose the step's nodes over all sequences and take memory for them."""
    chosen: list[list[int]] = [[] for _ in ready]
    for candidate in choose_nodes(ready, max_nodes, cost):
        chosen[candidate.sequence].append(candidate.node_id)
    trees = []
    for sequence, node_ids in zip(ready, chosen, strict=True):
        while node_ids and not memory.can_grow(sequence, sequence.fed + 1 + len(node_ids)):
            node_ids.pop()
        memory.grow(sequence, sequence.fed + 1 + len(node_ids))
        trees.append(tree_rows(sequence, (sequence.tree.nodes[node_id] for node_id in node_ids)))
    return trees


def choose_nodes(
    ready: Sequence[VerifySequence], max_nodes: int, cost: StepCost
) -> list[Candidate]:
    """The nodes over all sequences that pay."""
    candidates = (
        Candidate(index, node.id, node.depth, node.survival)
        for index, sequence in enumerate(ready)
        if sequence.speculates
        for node in sequence.tree.walk()
        if node.depth <= sequence.useful_depth
    )
    return select_nodes(candidates, len(ready), max_nodes, cost)


def tree_rows(sequence: VerifySequence, nodes: Iterable[Node]) -> TreeRows:
    """Lay out a root and ``nodes`` (parents first) as rows."""
    tokens, parents = [sequence.tokens[-1]], [0]
    paths: list[tuple[int, ...]] = [(0,)]
    rows: dict[int, int] = {}  # by node id
    promised = 0.0
    for node in nodes:
        parent, row = rows.get(node.parent_id, 0), len(tokens)  # of no other node: the root
        rows[node.id] = row
        tokens.append(node.token)
        parents.append(parent)
        paths.append((*paths[parent], row))
        promised += node.survival
    return TreeRows(sequence, tuple(tokens), tuple(parents), tuple(paths), promised)


def run(runner: Runner, trees: Sequence[TreeRows]) -> tuple[list[Outcome], StepTimings]:
    """Run the target over the rows and commit what it chose."""
    started = time.perf_counter()
    logits = runner.forward([tree.engine_rows() for tree in trees])
    forward_done = time.perf_counter()
    by_tree = logits.split([len(tree.tokens) for tree in trees])
    choices = _choices(runner, trees, logits)
    if not finite(logits):
        pairs = zip(choices, by_tree, strict=True)
        choices = [chosen if finite(rows) else None for chosen, rows in pairs]
    sample_done = time.perf_counter()
    outcomes = [
        _outcome(runner, tree, chosen, rows)
        for tree, chosen, rows in zip(trees, choices, by_tree, strict=True)
    ]
    timings = StepTimings(
        forward_us=_us(forward_done - started),
        sample_us=_us(sample_done - forward_done),
        commit_us=_us(time.perf_counter() - sample_done),
    )
    return outcomes, timings


def _choices(runner: Runner, trees: Sequence[TreeRows], logits: Tensor) -> list[list[int] | None]:
    """The target's token after every row, tree by tree."""
    rows = [
        tree.sequence.sampled_row(tree.below_root(row))
        for tree in trees
        for row in range(len(tree.tokens))
    ]
    chosen = iter(choose(logits, rows, runner.info.eos_token_ids))
    return [list(islice(chosen, len(tree.tokens))) for tree in trees]


def _outcome(runner: Runner, tree: TreeRows, choices: list[int] | None, logits: Tensor) -> Outcome:
    """Make tokens final: KV into place, tree re-rooted."""
    sequence = tree.sequence
    if choices is None or sequence.unscorable:
        return unsound(sequence)
    accepted = accept(tree.tokens, tree.parents, choices)
    ending = apply_stops(accepted.tokens, sequence.budget, sequence.stops)
    if ending.finish is None:
        fed = sequence.fed
        pairs = [(fed + row, fed + i) for i, row in enumerate(accepted.rows) if row != i]
        if pairs:
            runner.move(sequence.blocks, pairs)
    logprobs = logprobs_of(sequence, accepted.rows, ending.tokens, logits)
    return committed(sequence, len(tree.tokens) - 1, len(accepted.rows), ending, logprobs)


def unsound(sequence: VerifySequence) -> Outcome:
    """Of a sequence with numbers that mean nothing."""
    sequence.sound = False
    text = "the model's numbers are not finite for this input"
    code = code_number(grpc.StatusCode.INTERNAL)
    opened = sequence.opened
    return Outcome(sequence, None, SequenceError(opened.seq_id, opened.incarnation, code, text))


def committed(
    sequence: VerifySequence,
    verified: int,
    path: int,
    ending: Ending,
    logprobs: tuple[TokenLogprobs, ...],
) -> Outcome:
    """Of a sequence whose KV is where it belongs: takes in its tokens, and re-roots its tree.

    Args:
        verified: nodes. path: rows that were accepted, the root's included.
    """
    opened, position = sequence.opened, len(sequence.tokens)
    sequence.sound = True
    if ending.finish is None:
        sequence.fed += path
    orphans, sequence.orphans = tuple(sequence.orphans), []
    prompt = sequence.take_scored()
    hit = bool(ending.tokens) and sequence.advance(ending.tokens)
    commit = Commit(
        seq_id=opened.seq_id,
        incarnation=opened.incarnation,
        position=position,
        tokens=ending.tokens,
        verified=verified,
        accepted=min(path - 1, len(ending.tokens)),
        hit=hit,
        finish=ending.finish,
        orphans=orphans,
        logprobs=logprobs,
        cached=sequence.take_cached(),
        prompt=prompt,
    )
    return Outcome(sequence, commit)


def logprobs_of(
    sequence: VerifySequence, rows: Iterable[int], tokens: Sequence[int], logits: Tensor
) -> tuple[TokenLogprobs, ...]:
    """How likely ``tokens`` were after ``rows`` of ``logits``, if that is to be told."""
    top = sequence.opened.params.logprobs
    if top is None:
        return ()
    kept = zip(rows, tokens, strict=False)
    return tuple(token_logprobs(logits[row], token, top) for row, token in kept)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
