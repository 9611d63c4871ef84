"""Several steps with all kernels of trees and sampling, beside the services' own functions.

The model is a table: a token's logits depend on the one before it alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from support.device_sampling import Slot, options_of
from support.device_trees import moved, nodes_in, nodes_of, running, signed
from torch import Tensor

from foredraft.engine.sampling import SampledRow, choose
from foredraft.params import SamplingParams
from foredraft.policy.cost import StepCost
from foredraft.policy.selection import Candidate, select_nodes
from foredraft.tree.token_tree import TokenTree
from kernels.sample_coupled import Choices, sample_coupled
from kernels.tree_accept import tree_accept
from kernels.tree_append import Guesses, tree_append
from kernels.tree_layout import Commits, Picked, StepRows, Trees
from kernels.tree_reroot import tree_reroot
from kernels.tree_select import SelectWorkspace, tree_select
from verify_service.acceptance import accept, apply_stops

VOCAB, EOS, CAPACITY, DEPTH, MAX_ROWS = 24, (2,), 8, 6, 10
COST = StepCost((1, 32), (5.0, 6.0))
OPTIONS = (
    SamplingParams(max_tokens=6, ignore_eos=True),
    SamplingParams(
        temperature=0.9,
        min_p=0.01,
        presence_penalty=1.5,
        repetition_penalty=1.2,
        min_tokens=14,
        logit_bias={2: 4.0},
        seed=5,
    ),
)


@dataclass(slots=True)
class _Service:
    """A sequence as the verify service decodes it."""

    params: SamplingParams
    tree: TokenTree
    tokens: list[int]
    prompt: int = 2
    ended: bool = False
    steps: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def budget(self) -> int:
        return self.params.max_tokens - (len(self.tokens) - self.prompt)

    def choices(self, table: Tensor, paths: list[list[int]]) -> list[int]:
        histories = [(*self.tokens, *path) for path in paths]
        rows = [SampledRow(self.params, 0, len(h), self.prompt, h) for h in histories]
        return choose(table[[h[-1] for h in histories]], rows, EOS)

    def guesses(self, rng: random.Random, table: Tensor) -> list[tuple[int, int, float, int]]:
        """What will be chosen, mostly, and some other tokens beside it."""
        path: list[int] = []
        guesses, parent = [], self.tree.root_id
        for _ in range(rng.randrange(5)):
            right = self.choices(table, [path])[0]
            token = right if rng.random() < 0.9 else rng.randrange(VOCAB)
            for guess in (token, rng.randrange(VOCAB)):
                guesses.append((parent, guess, torch.tensor(rng.random()).item(), 1))
            path.append(token)
            self.tree.add(*guesses[-2])
            self.tree.add(*guesses[-1])
            parent = next(
                i for i in self.tree.children(parent) if self.tree.nodes[i].token == token
            )
        return guesses

    def commit(self, table: Tensor, node_ids: list[int]) -> None:
        rows = {self.tree.root_id: 0}
        tokens, parents, paths = [self.tokens[-1]], [0], [[]]
        for node_id in node_ids:
            node = self.tree.nodes[node_id]
            rows[node_id] = len(tokens)
            tokens.append(node.token)
            parents.append(rows[node.parent_id])
            paths.append(self.tree.path(node_id))
        accepted = accept(tokens, parents, self.choices(table, paths))
        ending = apply_stops(accepted.tokens, self.budget, self.params.ends(EOS))
        self.tokens += ending.tokens
        self.tree.advance(ending.tokens)
        self.steps.append(ending.tokens)
        self.ended = ending.finish is not None


def _rows(trees: Trees, sequences, picked: Picked) -> StepRows:
    """The rows of a step, from what was picked."""
    slots = len(trees.count)
    rows, row = StepRows.empty(slots, MAX_ROWS, torch.device("cpu")), 0
    for slot in range(slots):
        rows.start[slot] = row
        if not sequences.active[slot]:
            continue
        local = picked.row[slot].tolist()
        nodes = [-1, *(node for node, number in enumerate(local) if number)]
        rows.count[slot] = len(nodes)
        for node in nodes:
            parent = int(trees.parent[slot, node]) if node >= 0 else -2
            rows.slot[row], rows.node[row] = slot, node
            rows.parent[row] = local[parent] if parent >= 0 else parent + 1
            rows.depth[row] = trees.depth[slot, node] if node >= 0 else 0
            rows.token[row] = trees.token[slot, node] if node >= 0 else sequences.root_token[slot]
            rows.position[row] = sequences.length[slot] - 1 + rows.depth[row]
            row += 1
    return moved(rows, trees.count.device)


def _offered(guesses: list[list[tuple[int, int, float, int]]], device: torch.device) -> Guesses:
    offered, place = Guesses.empty(len(guesses), 64, torch.device("cpu")), 0
    for slot, own in enumerate(guesses):
        for parent, token, confidence, source in own:
            offered.parent_id[place], offered.token[place] = signed(parent), token
            offered.confidence[place], offered.source[place] = confidence, source
            place += 1
        offered.starts[slot + 1] = place
    return moved(offered, device)


def test_steps_on_the_device_are_the_services(device: torch.device) -> None:
    rng = random.Random(31)
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(2)) * 2
    services = [
        _Service(params, TokenTree(slot, 1, [3, 4 + slot], CAPACITY, DEPTH), [3, 4 + slot])
        for slot, params in enumerate(OPTIONS)
    ]
    slots = len(services)
    trees = Trees.empty(slots, CAPACITY, device)
    sequences = running([2] * slots, [2 + one.params.max_tokens for one in services], device)
    sequences.root_id.copy_(torch.tensor([signed(one.tree.root_id) for one in services]))
    sequences.root_token.copy_(torch.tensor([one.tokens[-1] for one in services]))
    starts = [Slot(one.params, tuple(one.tokens), 2) for one in services]
    options = options_of(starts, VOCAB, EOS, device)
    cost = torch.tensor([COST(n) for n in range(MAX_ROWS + 1)], dtype=torch.float64, device=device)
    allowed = torch.tensor([MAX_ROWS], dtype=torch.int32, device=device)
    workspace = SelectWorkspace.empty(slots, CAPACITY, 32, device)
    picked, commits = Picked.empty(slots, CAPACITY, device), Commits.empty(slots, DEPTH + 1, device)
    choices = Choices.empty(MAX_ROWS, VOCAB, device)
    verified = 0
    for _ in range(4):
        running_now = [one for one in services if not one.ended]
        guesses = [[] if one.ended else one.guesses(rng, table) for one in services]
        tree_append(trees, sequences, _offered(guesses, device), CAPACITY, DEPTH)
        tree_select(trees, sequences, cost, allowed, MAX_ROWS, workspace, picked)
        rows = _rows(trees, sequences, picked)
        sample_coupled(table.to(device)[rows.token.long()], options, rows, choices)
        tree_accept(rows, choices, sequences, options, commits, CAPACITY + 1)
        candidates = [
            Candidate(services.index(one), node.id, node.depth, node.survival)
            for one in running_now
            for node in one.tree.nodes.values()
            if node.depth <= one.budget - 1
        ]
        most = MAX_ROWS - len(running_now)
        chosen = select_nodes(candidates, len(running_now), most, COST) if running_now else []
        for slot, one in enumerate(services):
            if one.ended:
                assert not commits.count[slot] and not commits.path[slot]
                continue
            mine = [node.node_id for node in chosen if node.sequence == slot]
            held = trees.node_id[slot][picked.row[slot] > 0].tolist()
            assert sorted(held) == sorted(map(signed, mine))
            one.commit(table, mine)
            assert tuple(commits.tokens[slot, : commits.count[slot]].tolist()) == one.steps[-1]
            assert bool(commits.finish[slot]) == one.ended
            verified += len(mine)
        tree_reroot(trees, sequences, commits)
        for slot, one in enumerate(services):
            if not one.ended:
                assert nodes_of(trees, slot, one.tree.root_id) == nodes_in(one.tree)
                assert sequences.length[slot] == len(one.tokens)
    assert services[0].ended and len(services[0].tokens) == 2 + 6
    assert max(len(step) for one in services for step in one.steps) > 3
    assert verified > 12
