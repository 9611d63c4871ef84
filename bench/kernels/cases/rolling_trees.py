"""What happens to trees in a step: guesses join, nodes are picked, a commit re-roots.

Kernels that change trees start from the same ones each time, so that their times are those of
`RESTORING` and their own; it is a contestant to be subtracted.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from bench.kernels.case import OURS, Case, Findings, Prepared
from kernels.path_id import child_id_reference
from kernels.tree_append import NEW, Guesses, tree_append
from kernels.tree_layout import Commits, Picked, Sequences, Trees
from kernels.tree_reroot import tree_reroot, tree_reroot_reference
from kernels.tree_select import SelectWorkspace, tree_select, tree_select_reference

RESTORING = "restoring"

_Layout = TypeVar("_Layout", Trees, Sequences, Commits, Guesses)
_SLOTS = (1, 16, 64)
_CAPACITY, _NODES, _DEPTH, _MAX_NODES = 64, 48, 32, 256
_CHAIN = 12  # nodes of the longest path; the others hang below the root and its first nodes


def cases() -> list[Case]:
    """Trees are in the cache by nature: 40 bytes per node that is read."""
    return [
        Case(kernel, f"{slots} trees", 40 * slots * _NODES, partial(prepare, slots))
        for kernel, prepare in PREPARED.items()
        for slots in _SLOTS
    ]


def _guesses(slots: int) -> Guesses:
    """The same shape of tree for every slot, parents first."""
    guesses = Guesses.empty(slots, slots * _NODES, torch.device("cpu"))
    place = 0
    for slot in range(slots):
        ids = [slot + 1]
        for number in range(_NODES):
            parent = ids[number] if number < _CHAIN else ids[number % 4]
            guesses.parent_id[place], guesses.token[place] = parent, number
            guesses.confidence[place] = 0.9 if number < _CHAIN else 0.3 - number / 200
            ids.append(child_id_reference(parent, number))
            place += 1
        guesses.starts[slot + 1] = place
    return guesses


def _sequences(slots: int, device: torch.device) -> Sequences:
    sequences = Sequences.empty(slots, device)
    sequences.active.fill_(1)
    sequences.speculates.fill_(1)
    sequences.limit.fill_(1 << 20)
    sequences.node_limit.fill_(_CAPACITY)
    sequences.root_id.copy_(torch.arange(1, slots + 1, device=device))
    return sequences


def _grown(slots: int, device: torch.device) -> tuple[Trees, Sequences, Guesses]:
    trees, sequences = Trees.empty(slots, _CAPACITY, device), _sequences(slots, device)
    guesses = _moved(_guesses(slots), device)
    tree_append(trees, sequences, guesses, _CAPACITY, _DEPTH)
    return trees, sequences, guesses


def _columns(layout: _Layout) -> list[Tensor]:
    return [getattr(layout, field.name) for field in fields(layout)]


def _moved(layout: _Layout, device: torch.device) -> _Layout:
    """A copy."""
    return type(layout)(*(column.to(device, copy=True) for column in _columns(layout)))


def _copy(source: _Layout, target: _Layout) -> _Layout:
    for column, into in zip(_columns(source), _columns(target), strict=True):
        into.copy_(column)
    return target


def _append(slots: int, device: torch.device) -> Prepared:
    trees, sequences, guesses = _grown(slots, device)

    def ours(copy: int) -> None:
        trees.count.zero_()
        tree_append(trees, sequences, guesses, _CAPACITY, _DEPTH)

    def check() -> Findings:
        ours(0)
        return {"every guess is new": bool((guesses.outcome == NEW).all())}

    return Prepared({OURS: ours, RESTORING: lambda copy: trees.count.zero_()}, 2, check)


def _select(slots: int, device: torch.device) -> Prepared:
    trees, sequences, _ = _grown(slots, device)
    workspace = SelectWorkspace.empty(slots, _CAPACITY, _MAX_NODES, device)
    picked = Picked.empty(slots, _CAPACITY, device)
    max_rows = slots + _MAX_NODES
    cost = torch.arange(max_rows + 1, dtype=torch.float64, device=device) / 100 + 5
    allowed = torch.full((1,), _MAX_NODES, dtype=torch.int32, device=device)

    def ours(copy: int) -> object:
        return tree_select(trees, sequences, cost, allowed, max_rows, workspace, picked)

    def check() -> Findings:
        ours(0)
        exact = tree_select_reference(trees, sequences, cost, _MAX_NODES, max_rows)
        return {"the reference's nodes": torch.equal(picked.row, exact.row)}

    return Prepared({OURS: ours}, 2, check)


def _reroot(slots: int, device: torch.device) -> Prepared:
    trees, sequences, _ = _grown(slots, device)
    commits = Commits.empty(slots, _DEPTH + 1, device)
    commits.tokens[:, :3] = torch.arange(3, dtype=torch.int32, device=device)
    commits.count.fill_(3)
    kept, kept_sequences = _moved(trees, device), _moved(sequences, device)

    def restore(copy: int) -> object:
        _copy(kept, trees)
        return _copy(kept_sequences, sequences)

    def ours(copy: int) -> None:
        restore(copy)
        tree_reroot(trees, sequences, commits)

    def check() -> Findings:
        ours(0)
        exact, exact_sequences = _moved(kept, device), _moved(kept_sequences, device)
        tree_reroot_reference(exact, exact_sequences, _moved(commits, device))
        return {
            "the reference's trees": all(map(torch.equal, _columns(trees), _columns(exact))),
            "hits": bool(commits.hit.all()),
        }

    return Prepared({OURS: ours, RESTORING: restore}, 2, check)


PREPARED = {"tree_append": _append, "tree_select": _select, "tree_reroot": _reroot}
