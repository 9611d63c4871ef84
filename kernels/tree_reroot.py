"""Trees after a commit: the new root, what hangs below it, packed to the front.

The new root's id is the old one's hashed with the tokens delivered. If a node has it, that is a
hit: nodes below it stay, in their order, so that parents still come before children; depths
count from the new root, and survivals are multiplied anew, in float64 and from the root down, as
they are when a node is added. Ids are path hashes and stay. On a miss nothing stays.

One warp per slot. Whether a node hangs below the new root is found by following parents with
doubled steps; everything is exact. Bytes: 56 per node twice, in place.
"""

from __future__ import annotations

from dataclasses import fields

import triton
import triton.language as tl

from kernels.path_id import child_id, child_id_reference
from kernels.tree_layout import NO_NODE, Commits, Sequences, Trees

_NO_NODE = tl.constexpr(NO_NODE)


@triton.jit
def _above(values, parent):
    """The parents' values; for a child of the root any value."""
    return tl.gather(values, tl.maximum(parent, 0), 0)


@triton.jit
def _hangs_below(parent, node, found, DOUBLINGS: tl.constexpr):
    """True for the node ``found`` and what is below it."""
    reached = tl.where(node == found, found, parent)
    for _ in tl.static_range(DOUBLINGS):
        reached = tl.where(reached < 0, _NO_NODE, _above(reached, reached))
    return reached == found


@triton.jit
def _survivals(confidence, parent, depth, kept):
    """Products of confidences from the new root down, depth by depth."""
    confidence = confidence.to(tl.float64)
    survival = confidence
    for level in range(2, tl.max(tl.where(kept, depth, 0), 0) + 1):
        product = _above(survival, parent) * confidence
        survival = tl.where(depth == level, product, survival)
    return survival


@triton.jit
def _follow(sequences, commits, slot, LONGEST: tl.constexpr):
    """Move a sequence to the end of its commit; returns the new root's id."""
    actives, lengths, root_tokens, root_ids = sequences
    tokens, counts, finishes, _ = commits
    root_id, count = tl.load(root_ids + slot), tl.load(counts + slot)
    token = tl.load(root_tokens + slot)
    for place in range(count):
        token = tl.load(tokens + slot * LONGEST + place)
        root_id = child_id(root_id, token)
    tl.store(root_ids + slot, root_id)
    tl.store(root_tokens + slot, token)
    tl.store(lengths + slot, tl.load(lengths + slot) + count)
    if tl.load(finishes + slot) != 0:
        tl.store(actives + slot, 0)
    return root_id


@triton.jit
def _tree_reroot(
    trees, sequences, commits,
    CAPACITY: tl.constexpr, DOUBLINGS: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    tokens, parents, depths, confidences, survivals, node_ids, sources, counts = trees
    slot = tl.program_id(0)
    root_id = _follow(sequences, commits, slot, LONGEST)
    hits = commits[3]
    if tl.load(commits[1] + slot) == 0:
        tl.store(hits + slot, 0)
        return
    node = tl.arange(0, CAPACITY)
    here = slot * CAPACITY + node
    there = node < tl.load(counts + slot)
    node_id = tl.load(node_ids + here, mask=there, other=0)
    found = tl.min(tl.where(there & (node_id == root_id), node, CAPACITY), 0)
    if found == CAPACITY:
        tl.store(hits + slot, 0)
        tl.store(counts + slot, 0)
        return
    parent = tl.load(parents + here, mask=there, other=_NO_NODE)
    kept = _hangs_below(parent, node, found, DOUBLINGS) & there & (node != found)
    place = tl.cumsum(kept.to(tl.int32), 0) - 1
    token = tl.load(tokens + here, mask=there, other=0)
    source = tl.load(sources + here, mask=there, other=0)
    confidence = tl.load(confidences + here, mask=there, other=0.0)
    depth = tl.load(depths + here, mask=there, other=0)
    depth -= tl.sum(tl.where(node == found, depth, 0), 0)
    survival = _survivals(confidence, parent, depth, kept)
    above = tl.where(parent == found, _NO_NODE, _above(place, parent))
    packed = slot * CAPACITY + place
    # Threads write where others read.
    tl.debug_barrier()
    tl.store(tokens + packed, token, mask=kept)
    tl.store(parents + packed, above, mask=kept)
    tl.store(depths + packed, depth, mask=kept)
    tl.store(confidences + packed, confidence, mask=kept)
    tl.store(survivals + packed, survival, mask=kept)
    tl.store(node_ids + packed, node_id, mask=kept)
    tl.store(sources + packed, source, mask=kept)
    tl.store(counts + slot, tl.sum(kept.to(tl.int32), 0))
    tl.store(hits + slot, 1)


def tree_reroot(trees: Trees, sequences: Sequences, commits: Commits) -> None:
    """Apply ``commits`` to trees and sequences, in place, and write ``commits.hit``.

    A sequence that has ended takes no part in later steps.

    Raises:
        ValueError: shapes do not belong together.
    """
    slots, capacity = trees.token.shape
    if not len(sequences.length) == len(commits.count) == slots:
        raise ValueError(f"sequences and commits must have {slots} slots, as trees have")
    _tree_reroot[(slots,)](
        tuple(getattr(trees, field.name) for field in fields(trees)),
        (sequences.active, sequences.length, sequences.root_token, sequences.root_id),
        (commits.tokens, commits.count, commits.finish, commits.hit),
        CAPACITY=capacity,
        DOUBLINGS=capacity.bit_length(),
        LONGEST=commits.tokens.shape[1],
        num_warps=1,
    )


def tree_reroot_reference(trees: Trees, sequences: Sequences, commits: Commits) -> None:
    """The same, slot by slot."""
    for slot in range(len(trees.count)):
        count = int(commits.count[slot])
        root_id = int(sequences.root_id[slot])
        for token in commits.tokens[slot, :count].tolist():
            sequences.root_token[slot] = token
            root_id = child_id_reference(root_id, token)
        sequences.root_id[slot] = root_id
        sequences.length[slot] += count
        if commits.finish[slot] != 0:
            sequences.active[slot] = 0
        commits.hit[slot] = 0
        if count > 0:
            commits.hit[slot] = _keep(trees, slot, root_id)


def _keep(trees: Trees, slot: int, root_id: int) -> int:
    """Keep what hangs below the node ``root_id``; 1 if there is one."""
    nodes = int(trees.count[slot])
    found = (trees.node_id[slot, :nodes] == root_id).nonzero().flatten().tolist()
    root = found[0] if found else nodes
    places = {root: NO_NODE}
    survivals = {root: 1.0}
    for node in range(root + 1, nodes):
        parent = int(trees.parent[slot, node])
        if parent not in places:
            continue
        place = places[node] = len(places) - 1
        survivals[node] = survivals[parent] * float(trees.confidence[slot, node])
        for field in fields(trees)[:-1]:
            column = getattr(trees, field.name)[slot]
            column[place] = column[node].clone()
        trees.parent[slot, place] = places[parent]
        trees.survival[slot, place] = survivals[node]
        trees.depth[slot, place] = 1 if parent == root else trees.depth[slot, places[parent]] + 1
    trees.count[slot] = len(places) - 1
    return int(root < nodes)
