"""Trees on the device move as those of the services do."""

from __future__ import annotations

import random

import pytest
import torch
from support.device_trees import grow, moved, nodes_in, nodes_of, running, signed, trees_of

from foredraft.tree.token_tree import TokenTree
from kernels import tree_layout
from kernels.path_id import child_id_reference
from kernels.tree_layout import Commits
from kernels.tree_reroot import tree_reroot, tree_reroot_reference

CAPACITY, DEPTH = 32, 9


def _tree(rng: random.Random, seq_id: int, nodes: int) -> TokenTree:
    tree = TokenTree(seq_id, rng.randrange(2**31), [5, 1], CAPACITY, DEPTH)
    grow(rng, tree, nodes, vocab=3)
    return tree


def _commit(rng: random.Random, tree: TokenTree) -> list[int]:
    """A path of the tree, and perhaps tokens that are none of its nodes."""
    tokens = tree.path(rng.choice([tree.root_id, *tree.nodes]))
    beyond = [rng.randrange(2**31 - 1) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
    return (tokens + beyond)[:DEPTH] or [rng.randrange(3)]


def test_trees_are_those_of_the_services(device: torch.device) -> None:
    rng = random.Random(12)
    trees = [_tree(rng, slot, rng.randrange(40)) for slot in range(40)]
    held, before = trees_of(trees, CAPACITY, device), [len(tree) for tree in trees]
    sequences = running([2] * 40, [99] * 40, device)
    sequences.root_id.copy_(torch.tensor([signed(tree.root_id) for tree in trees]))
    commits = Commits.empty(40, DEPTH, device)
    paths = [_commit(rng, tree) for tree in trees]
    for slot, path in enumerate(paths):
        commits.tokens[slot, : len(path)] = torch.tensor(path)
        commits.count[slot] = len(path)
    reference = [moved(layout, device) for layout in (held, sequences, commits)]
    tree_reroot(held, sequences, commits)
    tree_reroot_reference(*reference)
    hits = kept = 0
    for slot, (tree, path) in enumerate(zip(trees, paths, strict=True)):
        hit = tree.advance(path)
        assert bool(commits.hit[slot]) == hit
        assert int(sequences.root_id[slot]) == signed(tree.root_id)
        assert int(sequences.root_token[slot]) == path[-1]
        assert int(sequences.length[slot]) == 2 + len(path)
        assert nodes_of(held, slot, tree.root_id) == nodes_in(tree)
        assert nodes_of(reference[0], slot, tree.root_id) == nodes_in(tree)
        hits, kept = hits + hit, kept + (1 < len(tree) < before[slot])
    assert hits > 10 and kept > 5
    for ours, theirs in zip((sequences, commits), reference[1:], strict=True):
        for name in ours.__slots__:
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_the_order_of_nodes_stays(device: torch.device) -> None:
    """Equals in a selection are taken in this order."""
    tree = TokenTree(1, 1, [0], CAPACITY, DEPTH)
    parents = [tree.root_id]
    for token in (4, 8):
        tree.add(tree.root_id, token, 0.5, 1)
    parents = list(tree.nodes)
    for token in (6, 3, 5):
        for parent in parents:
            tree.add(parent, token, 0.25, 1)
    held = trees_of([tree], CAPACITY, device)
    sequences, commits = running([1], [9], device), Commits.empty(1, DEPTH, device)
    sequences.root_id[0] = signed(tree.root_id)
    commits.tokens[0, 0], commits.count[0] = 8, 1
    tree_reroot(held, sequences, commits)
    assert held.token[0, :3].tolist() == [6, 3, 5]
    assert held.parent[0, :3].tolist() == [-1, -1, -1]
    assert held.survival[0, :3].tolist() == [0.25] * 3


def test_ended_and_idle_slots(device: torch.device) -> None:
    rng = random.Random(2)
    trees = [_tree(rng, slot, 9) for slot in range(3)]
    held = trees_of(trees, CAPACITY, device)
    sequences, commits = running([2] * 3, [9] * 3, device), Commits.empty(3, DEPTH, device)
    sequences.root_id.copy_(torch.tensor([signed(tree.root_id) for tree in trees]))
    sequences.active[2] = 0
    commits.hit.fill_(1)
    commits.tokens[0, 0], commits.count[0] = 7, 1
    commits.finish.copy_(torch.tensor([tree_layout.LENGTH, tree_layout.NOT_FINITE, 0]))
    tree_reroot(held, sequences, commits)
    assert sequences.active.tolist() == [0, 0, 0]
    assert commits.hit.tolist() == [0, 0, 0]
    assert sequences.length.tolist() == [3, 2, 2]
    assert held.count.tolist() == [0, len(trees[1]), len(trees[2])]
    with pytest.raises(ValueError, match="3 slots"):
        tree_reroot(held, sequences, Commits.empty(2, DEPTH, device))


def test_ids_are_the_services() -> None:
    from foredraft.tree.node_id import child_id

    rng = random.Random(6)
    for _ in range(200):
        parent, token = rng.getrandbits(64), rng.randrange(2**31)
        assert child_id_reference(signed(parent), token) == signed(child_id(parent, token))
