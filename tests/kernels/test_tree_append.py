"""Guesses hang in the device's trees where they hang in the services'."""

from __future__ import annotations

import random

import pytest
import torch
from support.device_trees import grow, moved, nodes_in, nodes_of, running, signed, trees_of

from foredraft.tree.node_id import child_id
from foredraft.tree.token_tree import Added, TokenTree
from kernels import tree_append as append
from kernels.tree_append import Guesses, tree_append, tree_append_reference

CAPACITY, NODES, DEPTH = 32, 20, 5
OUTCOMES = {
    Added.NEW: append.NEW,
    Added.KNOWN: append.KNOWN,
    Added.STALE: append.LOST,
    Added.ORPHAN: append.LOST,
    Added.FULL: append.FULL,
}
Guess = tuple[int, int, float, int]  # parent's id, token, confidence, source


def _guesses(rng: random.Random, tree: TokenTree, count: int) -> list[Guess]:
    """Below nodes, the root, each other, a former root and a path that nobody knows."""
    ids = [tree.root_id, *tree.nodes]
    former = rng.getrandbits(64)
    guesses = []
    for _ in range(count):
        parent = rng.choice([*ids, former, child_id(tree.root_id, 99)])
        token = rng.randrange(4)
        confidence = torch.tensor(rng.random()).item()
        guesses.append((parent, token, confidence, rng.choice([1, 2])))
        ids.append(child_id(parent, token))
    return guesses


def _held(guesses: list[list[Guess]], device: torch.device) -> Guesses:
    flat = [guess for of_slot in guesses for guess in of_slot]
    held = Guesses.empty(len(guesses), len(flat) + 3, torch.device("cpu"))
    for slot, of_slot in enumerate(guesses):
        held.starts[slot + 1] = held.starts[slot] + len(of_slot)
    for place, (parent, token, confidence, source) in enumerate(flat):
        held.parent_id[place], held.token[place] = signed(parent), token
        held.confidence[place], held.source[place] = confidence, source
    return moved(held, device)


def test_guesses_hang_where_the_services_hang_them(device: torch.device) -> None:
    rng = random.Random(21)
    trees = [TokenTree(slot, 3, [4], NODES, DEPTH) for slot in range(12)]
    for tree in trees:
        grow(rng, tree, rng.randrange(NODES), vocab=3)
    guesses = [_guesses(rng, tree, rng.choice([0, 1, 20])) for tree in trees]
    held, offered = trees_of(trees, CAPACITY, device), _held(guesses, device)
    sequences = running([1] * 12, [99] * 12, device)
    sequences.root_id.copy_(torch.tensor([signed(tree.root_id) for tree in trees]))
    reference, outcomes = moved(held, device), moved(offered, device)
    tree_append(held, sequences, offered, NODES, DEPTH)
    tree_append_reference(reference, sequences, outcomes, NODES, DEPTH)
    added = [tree.add(*guess) for tree, own in zip(trees, guesses, strict=True) for guess in own]
    assert set(added) >= {Added.NEW, Added.KNOWN, Added.ORPHAN, Added.FULL}
    assert offered.outcome[: len(added)].tolist() == [OUTCOMES[one] for one in added]
    assert not offered.outcome[len(added) :].any()
    assert torch.equal(offered.outcome, outcomes.outcome)
    for slot, tree in enumerate(trees):
        assert nodes_of(held, slot, tree.root_id) == nodes_in(tree)
        assert nodes_of(reference, slot, tree.root_id) == nodes_in(tree)
    with pytest.raises(ValueError, match="max_nodes"):
        tree_append(held, sequences, offered, CAPACITY + 1, DEPTH)


def test_guesses_about_what_was_just_committed(device: torch.device) -> None:
    """The path of the root itself is known; its siblings are lost, as the host will find out."""
    tree = TokenTree(1, 1, [4], NODES, DEPTH)
    former = tree.root_id
    tree.advance([6])
    held, sequences = trees_of([tree], CAPACITY, device), running([2], [9], device)
    sequences.root_id[0] = signed(tree.root_id)
    guesses = [(former, 6, 0.5, 1), (former, 7, 0.5, 1), (child_id(former, 6), 8, 0.5, 1)]
    offered = _held([guesses], device)
    tree_append(held, sequences, offered, NODES, DEPTH)
    assert offered.outcome[:3].tolist() == [append.KNOWN, append.LOST, append.NEW]
    assert [tree.add(*guess) for guess in guesses] == [Added.KNOWN, Added.STALE, Added.NEW]
    assert nodes_of(held, 0, tree.root_id) == nodes_in(tree)
