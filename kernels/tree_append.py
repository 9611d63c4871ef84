"""New guesses into the trees on the device, whose newest commit the host has not seen yet.

The host names a guess as the wire does: by its parent's id and its token. A guess is KNOWN if the
tree or its root is that very path; NEW below the root or a node; FULL where a bound is reached;
else LOST: below a path that the device does not hold, because it is behind or beside the committed
one or has never been told.

One warp per slot takes its guesses in turn: a guess may hang below the one before it. Survival is
the parent's times the confidence, in float64; everything is exact. Bytes: 28 per guess.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.path_id import child_id, child_id_reference
from kernels.tree_layout import NO_NODE, Sequences, Trees

NEW, KNOWN, LOST, FULL = 1, 2, 3, 4
_NEW, _KNOWN, _LOST, _FULL = map(tl.constexpr, (NEW, KNOWN, LOST, FULL))
_NO_NODE = tl.constexpr(NO_NODE)


@dataclass(frozen=True, slots=True)
class Guesses:
    """G guesses at most; those of slot s are starts[s]..starts[s + 1] - 1, parents first.

    starts: int32 [S + 1]. parent_id: int64 [G]. token, source: int32 [G].
    confidence: float32 [G]. outcome: int32 [G], written: NEW, KNOWN, LOST or FULL.
    """

    starts: Tensor
    parent_id: Tensor
    token: Tensor
    confidence: Tensor
    source: Tensor
    outcome: Tensor

    @classmethod
    def empty(cls, slots: int, most: int, device: torch.device) -> Guesses:
        whole = torch.int32
        return cls(
            starts=torch.zeros(slots + 1, dtype=whole, device=device),
            parent_id=torch.zeros(most, dtype=torch.int64, device=device),
            token=torch.zeros(most, dtype=whole, device=device),
            confidence=torch.zeros(most, device=device),
            source=torch.zeros(most, dtype=whole, device=device),
            outcome=torch.zeros(most, dtype=whole, device=device),
        )


@triton.jit
def _tree_append(trees, root_ids, guesses, max_nodes, max_depth, CAPACITY: tl.constexpr):
    tokens, parents, depths, confidences, survivals, node_ids, sources, counts = trees
    starts, parent_ids, guessed, confident, guessers, outcomes = guesses
    slot = tl.program_id(0)
    count, root_id = tl.load(counts + slot), tl.load(root_ids + slot)
    node = tl.arange(0, CAPACITY)
    here = slot * CAPACITY + node
    there = node < count
    ids = tl.load(node_ids + here, mask=there, other=0)
    depth = tl.load(depths + here, mask=there, other=0)
    survival = tl.load(survivals + here, mask=there, other=0.0)
    first, end = tl.load(starts + slot), tl.load(starts + slot + 1)
    new_parent_id, new_token, new_confidence, new_source = _guess(
        parent_ids, guessed, confident, guessers, first, end
    )
    for guess in range(first, end):
        parent_id, token = new_parent_id, new_token
        confidence, source = new_confidence, new_source
        new_parent_id, new_token, new_confidence, new_source = _guess(
            parent_ids, guessed, confident, guessers, guess + 1, end
        )
        node_id = child_id(parent_id, token)
        there = node < count
        above = there & (ids == parent_id)
        parent = tl.min(tl.where(above, node, CAPACITY), 0)
        parent = tl.where(parent_id == root_id, _NO_NODE, parent)
        new_depth = tl.sum(tl.where(above, depth, 0), 0) + 1
        survives = tl.sum(tl.where(above, survival, 0.0), 0)
        survives = tl.where(parent < 0, 1.0, survives) * confidence.to(tl.float64)
        known = tl.max((there & (ids == node_id)).to(tl.int32), 0)
        outcome = tl.where((count >= max_nodes) | (new_depth > max_depth), _FULL, _NEW)
        outcome = tl.where(parent == CAPACITY, _LOST, outcome)
        outcome = tl.where((known != 0) | (node_id == root_id), _KNOWN, outcome)
        tl.store(outcomes + guess, outcome)
        if outcome == _NEW:
            place = slot * CAPACITY + count
            tl.store(tokens + place, token)
            tl.store(parents + place, parent)
            tl.store(depths + place, new_depth)
            tl.store(confidences + place, confidence)
            tl.store(survivals + place, survives)
            tl.store(node_ids + place, node_id)
            tl.store(sources + place, source)
            ids = tl.where(node == count, node_id, ids)
            depth = tl.where(node == count, new_depth, depth)
            survival = tl.where(node == count, survives, survival)
            count += 1
    tl.store(counts + slot, count)


@triton.jit
def _guess(parent_ids, guessed, confident, guessers, guess, end):
    """What is told of a guess, asked for while the one before it is attached."""
    there = guess < end
    return (
        tl.load(parent_ids + guess, mask=there, other=0),
        tl.load(guessed + guess, mask=there, other=0),
        tl.load(confident + guess, mask=there, other=0.0),
        tl.load(guessers + guess, mask=there, other=0),
    )


def tree_append(
    trees: Trees, sequences: Sequences, guesses: Guesses, max_nodes: int, max_depth: int
) -> None:
    """Attach ``guesses`` to ``trees``, in place, and write their outcomes.

    Raises:
        ValueError: shapes do not belong together, or the trees have no room for ``max_nodes``.
    """
    slots, capacity = trees.token.shape
    if len(guesses.starts) != slots + 1 or len(sequences.root_id) != slots:
        raise ValueError(f"sequences and guesses must be of {slots} slots, as trees are")
    if not 0 <= max_nodes <= capacity:
        raise ValueError(f"max_nodes must be from 0 to {capacity}, not {max_nodes}")
    _tree_append[(slots,)](
        tuple(getattr(trees, field.name) for field in fields(trees)),
        sequences.root_id,
        tuple(getattr(guesses, field.name) for field in fields(guesses)),
        max_nodes,
        max_depth,
        CAPACITY=capacity,
        num_warps=1,
    )


def tree_append_reference(
    trees: Trees, sequences: Sequences, guesses: Guesses, max_nodes: int, max_depth: int
) -> None:
    """The same, guess by guess."""
    starts = guesses.starts.tolist()
    for slot in range(len(trees.count)):
        root_id = int(sequences.root_id[slot])
        for guess in range(starts[slot], starts[slot + 1]):
            held = trees.node_id[slot, : int(trees.count[slot])].tolist()
            parent_id, token = int(guesses.parent_id[guess]), int(guesses.token[guess])
            node_id = child_id_reference(parent_id, token)
            if node_id == root_id or node_id in held:
                guesses.outcome[guess] = KNOWN
                continue
            if parent_id != root_id and parent_id not in held:
                guesses.outcome[guess] = LOST
                continue
            parent = NO_NODE if parent_id == root_id else held.index(parent_id)
            depth = 1 if parent == NO_NODE else int(trees.depth[slot, parent]) + 1
            if len(held) >= max_nodes or depth > max_depth:
                guesses.outcome[guess] = FULL
                continue
            guesses.outcome[guess] = NEW
            above = 1.0 if parent == NO_NODE else float(trees.survival[slot, parent])
            place = len(held)
            trees.token[slot, place], trees.parent[slot, place] = token, parent
            trees.depth[slot, place], trees.node_id[slot, place] = depth, node_id
            trees.confidence[slot, place] = guesses.confidence[guess]
            trees.survival[slot, place] = above * float(guesses.confidence[guess])
            trees.source[slot, place] = guesses.source[guess]
            trees.count[slot] += 1
