"""The nodes of a step are those that the policy picks."""

from __future__ import annotations

import random

import pytest
import torch
from support.device_trees import grow, running, trees_of
from torch import Tensor

from foredraft.policy.cost import StepCost
from foredraft.policy.selection import Candidate, select_nodes
from foredraft.tree.token_tree import TokenTree
from kernels.tree_layout import Picked, Sequences, Trees
from kernels.tree_select import SelectWorkspace, tree_select, tree_select_reference

CAPACITY = 16
COSTS = {
    "free": StepCost((1, 64), (20.0, 20.0)),
    "dear": StepCost((1, 64), (4.0, 67.0)),
    "steps": StepCost((1, 8, 9, 16, 17, 64), (2.5, 2.5, 3.0, 3.1, 3.4, 9.0), held_ms=0.7),
}


def _picked(
    trees: Trees, sequences: Sequences, cost: Tensor, allowed: int, max_rows: int, bound: int = 64
) -> Picked:
    device, slots = trees.token.device, len(trees.count)
    workspace = SelectWorkspace.empty(slots, CAPACITY, bound, device)
    workspace.ordered.fill_(torch.nan)
    out = Picked.empty(slots, CAPACITY, device)
    out.row.fill_(-7)
    out.promise.fill_(torch.nan)
    limit = torch.tensor([allowed], dtype=torch.int32, device=device)
    return tree_select(trees, sequences, cost, limit, max_rows, workspace, out)


def _policy(
    trees: Trees, sequences: Sequences, max_nodes: int, cost: StepCost
) -> list[tuple[int, int]]:
    """(slot, node) as the verify service picks them, had it such trees."""
    room = (sequences.limit - sequences.length).tolist()
    candidates = [
        Candidate(slot, node, int(trees.depth[slot, node]), float(trees.survival[slot, node]))
        for slot in range(len(room))
        if sequences.active[slot] and sequences.speculates[slot]
        for node in range(int(trees.count[slot]))
        if trees.depth[slot, node] <= room[slot] - 1
    ]
    chosen = select_nodes(candidates, int(sequences.active.sum()), max_nodes, cost)
    return sorted((node.sequence, node.node_id) for node in chosen)


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("slots", [1, 5])
def test_nodes_are_the_policys(device: torch.device, slots: int, name: str) -> None:
    rng, cost = random.Random(slots), COSTS[name]
    table = torch.tensor([cost(rows) for rows in range(80)], dtype=torch.float64, device=device)
    counts = set()
    for allowed, max_rows in ((64, 64), (3, 64), (64, slots + 5), (0, 64), (64, slots)):
        trees = [TokenTree(slot, 1, [1], CAPACITY, 6) for slot in range(slots)]
        for tree in trees:
            grow(rng, tree, rng.randrange(2 * CAPACITY), vocab=3)
        held = trees_of(trees, CAPACITY, device)
        limits = [rng.choice([3, 5, 90]) for _ in trees]
        sequences = running([2] * slots, limits, device)
        if slots > 1:
            sequences.active[rng.randrange(slots)] = 0
            sequences.speculates[rng.randrange(slots)] = 0
        active = int(sequences.active.sum())
        picked = _picked(held, sequences, table, allowed, max_rows)
        wanted = _policy(held, sequences, min(allowed, max_rows - active), cost)
        assert sorted(map(tuple, picked.row.nonzero().tolist())) == wanted
        for slot in range(slots):
            rows = picked.row[slot][picked.row[slot] > 0].tolist()
            assert rows == list(range(1, int(picked.count[slot]) + 1))
        reference = tree_select_reference(held, sequences, table, allowed, max_rows)
        assert torch.equal(picked.row, reference.row)
        assert torch.equal(picked.count, reference.count)
        torch.testing.assert_close(picked.promise, reference.promise)
        counts.add(len(wanted))
    assert len(counts) > 1


def test_no_node_comes_without_its_parent(device: torch.device) -> None:
    rng, table = random.Random(3), torch.full((40,), 5.0, dtype=torch.float64, device=device)
    tree = TokenTree(1, 1, [1], CAPACITY, 9)
    grow(rng, tree, 60, vocab=2)
    held = trees_of([tree], CAPACITY, device)
    for limit in range(len(tree) + 1):
        sequences = running([2], [90], device)
        sequences.node_limit.fill_(limit)
        picked = _picked(held, sequences, table, 64, 32)
        assert int(picked.count[0]) == min(limit, len(tree))
        taken = picked.row[0, : len(tree)] > 0
        parents = held.parent[0, : len(tree)]
        assert all(parent < 0 or taken[parent] for parent in parents[taken].tolist())


def test_a_bound_on_nodes_holds_where_more_would_pay(device: torch.device) -> None:
    rng, table = random.Random(9), torch.full((80,), 5.0, dtype=torch.float64, device=device)
    trees = [TokenTree(slot, 1, [1], CAPACITY, 9) for slot in range(3)]
    for tree in trees:
        grow(rng, tree, 60, vocab=2)
    held, sequences = trees_of(trees, CAPACITY, device), running([2] * 3, [90] * 3, device)
    assert int(_picked(held, sequences, table, 64, 64, bound=8).count.sum()) == 8
    sequences.active.zero_()
    assert not _picked(held, sequences, table, 64, 64).row.any()


def test_shapes_that_do_not_fit_are_refused(device: torch.device) -> None:
    trees, sequences = Trees.empty(2, CAPACITY, device), running([1, 1], [9, 9], device)
    cost = torch.ones(20, dtype=torch.float64, device=device)
    with pytest.raises(ValueError, match="cost"):
        _picked(trees, sequences, cost, 4, 20)
    with pytest.raises(ValueError, match="max_rows"):
        _picked(trees, sequences, cost, 4, 1)
    with pytest.raises(ValueError, match="max_nodes"):
        SelectWorkspace.empty(2, CAPACITY, 12, device)
    with pytest.raises(ValueError, match="capacity"):
        Trees.empty(2, 12, device)
