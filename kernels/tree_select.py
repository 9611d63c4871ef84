"""Which guesses a step verifies: the best over all sequences, as many as pay.

All nodes of sequences in the step, but for those too deep to be delivered with a token after
them, are ordered by (survival, shallower first), which puts no node before its parent; equals
stay in the order of slots and nodes. N of them are taken, with N maximising

    (sequences + sum of the N survivals) / cost[sequences + N]

and none where that gains less than 3 % over ``sequences / cost[sequences]``. A sequence whose
memory is short leaves out its last ones.

Two launches. In the first every node counts what goes before it, n^2 comparisons spread over the
device for n = S * C. In the second each slot's program sums the ordered survivals, finds N, the
same in all, and numbers its own nodes. Order and picks are exact; rates are float64 and their sums
are added as a tree, so that N differs from a sum one by one only where two rates agree to 1e-13.
cost: float64 [>= R + 1], milliseconds of a step of that many rows, holds included; the host may
write it between steps. Bytes: 16 per node and program of the first launch, from the L2 cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tree_layout import Picked, Sequences, Trees, slot_lanes

_LEAST_GAIN = tl.constexpr(1.03)
_LAST = tl.constexpr(0x7FFFFFFF)
_BLOCK = 32
_OTHERS = 128


@dataclass(frozen=True, slots=True)
class SelectWorkspace:
    """ranks: int32 [S, C]. ordered: float64 [most nodes of a step]. eligible: int32 [1]."""

    ranks: Tensor
    ordered: Tensor
    eligible: Tensor

    @classmethod
    def empty(
        cls, slots: int, capacity: int, max_nodes: int, device: torch.device
    ) -> SelectWorkspace:
        """``max_nodes`` must be a power of two (ValueError)."""
        if max_nodes < 1 or max_nodes & (max_nodes - 1):
            raise ValueError(f"max_nodes must be a power of two, not {max_nodes}")
        return cls(
            ranks=torch.zeros(slots, capacity, dtype=torch.int32, device=device),
            ordered=torch.zeros(max_nodes, dtype=torch.float64, device=device),
            eligible=torch.zeros(1, dtype=torch.int32, device=device),
        )


@triton.jit
def _candidates(trees, sequences, nodes, total, CAPACITY: tl.constexpr):
    """Survivals and depths of flat ``nodes``; the survival of what cannot be taken is -1."""
    survivals, depths, counts = trees
    actives, speculates, lengths, limits = sequences
    slot = nodes // CAPACITY
    there = nodes < total
    useful = tl.load(limits + slot, mask=there, other=0) - tl.load(lengths + slot, mask=there)
    takes_part = tl.load(actives + slot, mask=there, other=0) != 0
    takes_part &= tl.load(speculates + slot, mask=there, other=0) != 0
    takes_part &= nodes % CAPACITY < tl.load(counts + slot, mask=there, other=0)
    depth = tl.load(depths + nodes, mask=there, other=_LAST)
    takes_part &= depth < useful
    survival = tl.load(survivals + nodes, mask=there, other=0.0)
    return tl.where(takes_part, survival, -1.0), depth


@triton.jit(do_not_specialize=["slots"])
def _rank(
    trees, sequences, ranks, ordered, eligible, slots,
    CAPACITY: tl.constexpr, MAX_NODES: tl.constexpr, BLOCK: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    total = slots * CAPACITY
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    survival, depth = _candidates(trees, sequences, own, total, CAPACITY)
    before = tl.zeros((BLOCK,), tl.int32)
    takes_part = tl.zeros((OTHERS,), tl.int32)
    for first in range(0, total, OTHERS):
        other = first + tl.arange(0, OTHERS)
        others, their_depth = _candidates(trees, sequences, other, total, CAPACITY)
        takes_part += (others >= 0).to(tl.int32)
        sooner = other[None, :] < own[:, None]
        shallower = their_depth[None, :] < depth[:, None]
        sooner = shallower | ((their_depth[None, :] == depth[:, None]) & sooner)
        equal = others[None, :] == survival[:, None]
        sooner = (others[None, :] > survival[:, None]) | (equal & sooner)
        before += tl.sum(sooner.to(tl.int32), 1)
    counts = survival >= 0
    tl.store(ranks + own, tl.where(counts, before, _LAST), mask=own < total)
    tl.store(ordered + before, survival, mask=counts & (before < MAX_NODES))
    if tl.program_id(0) == 0:
        tl.store(eligible, tl.sum(takes_part, 0))


@triton.jit
def _how_many(sequences, ordered, cost, most, MAX_NODES: tl.constexpr):
    """N for that many sequences, at most ``most``."""
    place = tl.arange(0, MAX_NODES)
    there = place < most
    expected = tl.cumsum(tl.load(ordered + place, mask=there, other=0.0), 0) + sequences
    rate = expected / tl.load(cost + sequences + 1 + place, mask=there, other=1.0)
    rate = tl.where(there, rate, 0.0)
    best = tl.max(rate, 0)
    least = tl.full((), _LEAST_GAIN, tl.float64) * sequences / tl.load(cost + sequences)
    first = tl.min(tl.where(rate == best, place, MAX_NODES), 0)
    return tl.where((best > least) & (most > 0), first + 1, 0)


@triton.jit(do_not_specialize=["slots", "max_rows"])
def _pick(
    actives, node_limits, survivals, ranks, ordered, eligible, cost, allowed, picked,
    slots, max_rows,
    SLOTS: tl.constexpr, CAPACITY: tl.constexpr, MAX_NODES: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    every = tl.arange(0, SLOTS)
    sequences = tl.sum(tl.load(actives + every, mask=every < slots, other=0), 0)
    most = tl.minimum(tl.load(eligible), tl.load(allowed))
    most = tl.minimum(tl.minimum(most, max_rows - sequences), MAX_NODES)
    taken = _how_many(sequences, ordered, cost, most, MAX_NODES)
    node = tl.arange(0, CAPACITY)
    rank = tl.load(ranks + slot * CAPACITY + node)
    # Along the other axis the same numbers again.
    other = tl.load(ranks + slot * CAPACITY + tl.arange(0, CAPACITY))
    better = tl.sum((other[None, :] < rank[:, None]).to(tl.int32), 1)
    kept = (rank < taken) & (better < tl.load(node_limits + slot))
    number = tl.cumsum(kept.to(tl.int32), 0)
    tl.store(picked[0] + slot * CAPACITY + node, tl.where(kept, number, 0))
    tl.store(picked[1] + slot, tl.sum(kept.to(tl.int32), 0))
    survival = tl.load(survivals + slot * CAPACITY + node, mask=kept, other=0.0)
    tl.store(picked[2] + slot, tl.sum(survival, 0))


def tree_select(
    trees: Trees,
    sequences: Sequences,
    cost: Tensor,
    allowed: Tensor,
    max_rows: int,
    workspace: SelectWorkspace,
    out: Picked,
) -> Picked:
    """Write to ``out`` which nodes the next step verifies.

    Args:
        allowed: int32 [1], nodes that a step may verify.
        max_rows: rows of the step's bucket, roots included; no more are used.

    Raises:
        ValueError: shapes do not belong together.
    """
    slots, capacity = trees.token.shape
    if not workspace.ranks.shape == out.row.shape == trees.token.shape:
        raise ValueError(f"workspace and out must be [{slots}, {capacity}], as trees are")
    if len(sequences.active) != slots:
        raise ValueError(f"sequences must have {slots} slots, as trees have")
    if len(cost) <= max_rows or cost.dtype != torch.float64:
        raise ValueError(f"cost must be float64 of more than {max_rows} entries")
    if max_rows < slots:
        raise ValueError(f"max_rows must be at least the number of slots, {slots}")
    max_nodes = len(workspace.ordered)
    _rank[(triton.cdiv(slots * capacity, _BLOCK),)](
        (trees.survival, trees.depth, trees.count),
        (sequences.active, sequences.speculates, sequences.length, sequences.limit),
        workspace.ranks,
        workspace.ordered,
        workspace.eligible,
        slots,
        CAPACITY=capacity,
        MAX_NODES=max_nodes,
        BLOCK=_BLOCK,
        OTHERS=_OTHERS,
    )
    _pick[(slots,)](
        sequences.active,
        sequences.node_limit,
        trees.survival,
        workspace.ranks,
        workspace.ordered,
        workspace.eligible,
        cost,
        allowed,
        (out.row, out.count, out.promise),
        slots,
        max_rows,
        SLOTS=slot_lanes(slots),
        CAPACITY=capacity,
        MAX_NODES=max_nodes,
    )
    return out


def tree_select_reference(
    trees: Trees, sequences: Sequences, cost: Tensor, allowed: int, max_rows: int
) -> Picked:
    """The same, sorted and summed one by one."""
    slots, capacity = trees.token.shape
    active = int(sequences.active.sum())
    nodes = [
        (-float(trees.survival[slot, node]), int(trees.depth[slot, node]), slot, node)
        for slot in range(slots)
        if sequences.active[slot] and sequences.speculates[slot]
        for node in range(int(trees.count[slot]))
        if trees.depth[slot, node] < sequences.limit[slot] - sequences.length[slot]
    ]
    nodes = sorted(nodes)[: min(allowed, max_rows - active)]
    best_rate, taken = _LEAST_GAIN.value * active / float(cost[active]), 0
    expected = float(active)
    for count, (less, _, _, _) in enumerate(nodes, start=1):
        expected -= less
        rate = expected / float(cost[active + count])
        if rate > best_rate:
            best_rate, taken = rate, count
    picked = Picked.empty(slots, capacity, trees.token.device)
    for _, _, slot, node in nodes[:taken]:
        if picked.count[slot] < sequences.node_limit[slot]:
            picked.row[slot, node] = 1
            picked.count[slot] += 1
            picked.promise[slot] += trees.survival[slot, node]
    picked.row.copy_(picked.row.cumsum(1) * picked.row)
    return picked
