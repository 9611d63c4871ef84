from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch
from support.paged_trees import random_parents
from torch import Tensor

from kernels.build_inputs import build_inputs, build_inputs_reference
from kernels.tree_layout import Picked, Sequences, StepRows, Trees

_CAPACITY = 16
_LONGEST = 9
_UNTOUCHED = -7


@dataclass(frozen=True, slots=True)
class _State:
    trees: Trees
    sequences: Sequences
    picked: Picked
    tables: Tensor


@dataclass(frozen=True, slots=True)
class _Built:
    rows: StepRows
    place: Tensor
    path: Tensor


def _state(sizes: list[tuple[int, int]], device: torch.device) -> _State:
    """Slots with (nodes, share of nodes that are picked in per cent), -1 nodes if not active."""
    random = torch.Generator().manual_seed(len(sizes))
    trees = Trees.empty(len(sizes), _CAPACITY, device)
    sequences = Sequences.empty(len(sizes), device)
    picked = Picked.empty(len(sizes), _CAPACITY, device)
    for slot, (nodes, share) in enumerate(sizes):
        sequences.active[slot] = nodes >= 0
        sequences.length[slot] = 10 + 7 * slot
        sequences.root_token[slot] = 900 + slot
        parents = random_parents(nodes + 1, random)
        chosen = [True]
        for row, parent in enumerate(parents[1:], start=1):
            node = row - 1
            trees.token[slot, node] = 100 * slot + node
            trees.parent[slot, node] = parent - 1
            trees.depth[slot, node] = 1 + int(trees.depth[slot, parent - 1]) if parent else 1
            chosen.append(chosen[parent] and int(torch.randint(100, (), generator=random)) < share)
            if chosen[-1]:
                picked.row[slot, node] = sum(chosen) - 1
        picked.count[slot] = sum(chosen) - 1
    blocks = torch.randperm(len(sizes) * 6, generator=random).view(len(sizes), 6)
    return _State(trees, sequences, picked, blocks.to(device, torch.int32))


def _build(state: _State, rows: int, device: torch.device, reference: bool = False) -> _Built:
    built = _Built(
        StepRows.empty(len(state.tables), rows, device),
        torch.full((rows,), _UNTOUCHED, dtype=torch.int32, device=device),
        torch.full((rows, _LONGEST), _UNTOUCHED, dtype=torch.int32, device=device),
    )
    for field in fields(StepRows):
        getattr(built.rows, field.name).fill_(_UNTOUCHED)
    make = build_inputs_reference if reference else build_inputs
    parts = state.trees, state.sequences, state.picked, state.tables
    make(*parts, built.rows, built.place, built.path)
    return built


def test_a_small_tree_by_hand(device: torch.device):
    trees = Trees.empty(1, 4, device)
    sequences = Sequences.empty(1, device)
    sequences.active[0], sequences.length[0], sequences.root_token[0] = 1, 16, 50
    for node, (parent, depth, token) in enumerate([(-1, 1, 51), (-1, 1, 52), (1, 2, 53)]):
        trees.parent[0, node], trees.depth[0, node], trees.token[0, node] = parent, depth, token
    picked = Picked.empty(1, 4, device)
    picked.row[0, 1], picked.row[0, 2], picked.count[0] = 1, 2, 2  # the first is left out
    tables = torch.tensor([[4, 2]], dtype=torch.int32, device=device)
    built = _build(_State(trees, sequences, picked, tables), 4, device)
    rows = built.rows
    assert (rows.start.tolist(), rows.count.tolist()) == ([0], [3])
    assert rows.slot.tolist() == [0, 0, 0, -1]
    assert rows.node.tolist() == [-1, 1, 2, -1]
    assert rows.parent.tolist() == [-1, 0, 1, -1]
    assert rows.depth.tolist() == [0, 1, 2, 0]
    assert rows.token.tolist() == [50, 52, 53, 0]
    assert rows.position.tolist() == [15, 16, 17, 0]
    assert built.place.tolist() == [4 * 16 + 15, 2 * 16, 2 * 16 + 1, -1]
    assert [line[:4] for line in built.path.tolist()[:3]] == [
        [0, -7, -7, -7],
        [0, 1, -7, -7],
        [0, 1, 2, -7],
    ]


@pytest.mark.parametrize("rows", [64, 29], ids=["with padding", "nearly full"])
def test_ragged_trees_are_the_references(device: torch.device, rows: int):
    sizes = [(-1, 0), (0, 0), (16, 100), (5, 60), (-1, 0), (1, 100), (9, 0), (12, 70)]
    state = _state(sizes, device)
    built, expected = _build(state, rows, device), _build(state, rows, device, reference=True)
    for field in fields(StepRows):
        ours, theirs = getattr(built.rows, field.name), getattr(expected.rows, field.name)
        assert torch.equal(ours, theirs), field.name
    assert torch.equal(built.place, expected.place)
    assert torch.equal(built.path, expected.path)
    assert built.rows.count.tolist()[:2] == [0, 1]
    assert int(built.rows.count.sum()) == 28
    assert int(built.rows.depth.max()) > 2


def test_no_slot_is_active(device: torch.device):
    built = _build(_state([(-1, 0), (-1, 0)], device), 3, device)
    assert built.rows.slot.tolist() == [-1, -1, -1]
    assert built.rows.count.tolist() == [0, 0]


def test_rows_that_do_not_fit_are_left_out(device: torch.device):
    state = _state([(3, 100), (16, 100)], device)
    built, whole = _build(state, 8, device), _build(state, 32, device)
    assert torch.equal(built.rows.token, whole.rows.token[:8])
    assert torch.equal(built.path, whole.path[:8])


def test_what_does_not_fit_is_named(device: torch.device):
    state = _state([(3, 100)], device)
    built = _build(state, 8, device)
    parts = state.trees, state.sequences, state.picked
    with pytest.raises(ValueError, match=r"tables must be contiguous torch.int32 \[1, 6\]"):
        build_inputs(*parts, state.tables.long(), built.rows, built.place, built.path)
    with pytest.raises(ValueError, match=r"place must be contiguous torch.int32 \[8\]"):
        build_inputs(*parts, state.tables, built.rows, built.place[:4], built.path)
