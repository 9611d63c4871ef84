"""From trees and picks to the rows of a step: tokens, positions, places in the KV pool, paths.

A slot that is active has its root as local row 0, then its picked nodes by their local rows. With
``fed = length - 1`` entries committed, a row of depth d stands at position ``fed + d`` and writes
its keys and values to slot ``fed + local row`` of its sequence. Its path are the local rows from
the root down to itself: at position ``fed + i`` it sees slot ``fed + path[i]``.

One program per slot, and one for the rows behind the last that are padding; a slot's first row is
the number of rows before it, so nothing depends on the host. All integers, exact. Moved: 12 bytes
per node of every tree, 36 + 4 depth per row; a path is walked upwards, one read per depth.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.kv_layout import BLOCK, place_of
from kernels.tree_layout import NO_NODE, Picked, Sequences, StepRows, Trees, slot_lanes

_NO_NODE = tl.constexpr(NO_NODE)


def build_inputs(
    trees: Trees,
    sequences: Sequences,
    picked: Picked,
    tables: Tensor,
    rows: StepRows,
    place: Tensor,
    path: Tensor,
) -> None:
    """Fill ``rows``, ``place`` and ``path``.

    Rows that would not fit are left out, which `tree_select` sees to that there are none.

    Args:
        tables: int32 [slots, blocks]: block tables.
        place: int32 [rows], in the KV pool; -1 for padding.
        path: int32 [rows, longest]; entries behind a row's depth stay as they are, and so do
            padding's.

    Raises:
        ValueError: a tensor has another shape or dtype.
    """
    slots, capacity = trees.token.shape
    count = len(rows.slot)
    check_tensor("picked.row", picked.row, (slots, capacity), torch.int32)
    check_tensor("tables", tables, (slots, tables.shape[-1]), torch.int32)
    check_tensor("place", place, (count,), torch.int32)
    check_tensor("path", path, (count, path.shape[-1]), torch.int32)
    build_inputs_kernel[(slots + 1,)](
        trees.token,
        trees.parent,
        trees.depth,
        picked.row,
        picked.count,
        sequences.active,
        sequences.length,
        sequences.root_token,
        tables,
        rows.start,
        rows.count,
        rows.slot,
        rows.node,
        rows.parent,
        rows.depth,
        rows.token,
        rows.position,
        place,
        path,
        slots,
        count,
        tables.stride(0),
        path.shape[1],
        CAPACITY=capacity,
        SLOTS=slot_lanes(slots),
        num_warps=2,
    )


@triton.jit(do_not_specialize=["slots", "rows"])
def build_inputs_kernel(
    tokens, parents, depths, picked_row, picked_count, active, length, root_token, tables,
    start, count, row_slot, row_node, row_parent, row_depth, row_token, row_position, place, path,
    slots, rows, table_stride, longest,
    CAPACITY: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """One program per slot; the last one writes the padding."""
    own = tl.program_id(0)
    every = tl.arange(0, SLOTS)
    there = every < slots
    takes_part = tl.load(active + every, mask=there, other=0) != 0
    counts = tl.where(takes_part, 1 + tl.load(picked_count + every, mask=there, other=0), 0)
    first = tl.sum(tl.where(every < own, counts, 0), 0)
    out = row_slot, row_node, row_parent, row_depth, row_token, row_position
    if own == slots:
        for at in range(first, rows, CAPACITY):
            row = at + tl.arange(0, CAPACITY)
            nothing = tl.zeros([CAPACITY], tl.int32)
            values = nothing - 1, nothing + _NO_NODE, nothing - 1, nothing, nothing, nothing
            _store_rows(out, row, values, row < rows)
            tl.store(place + row, -1, mask=row < rows)
    else:
        mine = tl.sum(tl.where(every == own, counts, 0), 0)
        tl.store(start + own, first)
        tl.store(count + own, mine)
        fed = tl.load(length + own) - 1
        table = tables + own * table_stride
        fits = (mine > 0) & (first < rows)
        if fits:
            token = tl.load(root_token + own)
            _store_rows(out, first, (own, _NO_NODE, -1, 0, token, fed), fits)
            tl.store(place + first, place_of(table, fed, None, False))
            tl.store(path + first * longest, 0)
            node = tl.arange(0, CAPACITY)
            local_rows, above = picked_row + own * CAPACITY, parents + own * CAPACITY
            local = tl.load(local_rows + node)
            row = first + local
            chosen = (local > 0) & (row < rows)
            parent = tl.load(above + node, mask=chosen, other=-1)
            parent_row = tl.load(local_rows + parent, mask=parent >= 0, other=0)
            depth = tl.load(depths + own * CAPACITY + node, mask=chosen, other=0)
            guess = tl.load(tokens + own * CAPACITY + node, mask=chosen, other=0)
            slot = tl.zeros([CAPACITY], tl.int32) + own
            _store_rows(out, row, (slot, node, parent_row, depth, guess, fed + depth), chosen)
            tl.store(place + row, place_of(table, fed + local, chosen, True), mask=chosen)
            _store_paths(path + row * longest, longest, local_rows, above, node, depth, chosen)


@triton.jit
def _store_rows(out, row, values, used):
    for column in tl.static_range(6):
        tl.store(out[column] + row, values[column], mask=used)


@triton.jit
def _store_paths(line, longest, local_rows, above, node, depth, chosen):
    """Write the lines of nodes at ``depth`` from their ends to the root."""
    tl.store(line, 0, mask=chosen)
    for _ in range(0, tl.max(depth, 0)):
        chosen &= depth > 0
        local = tl.load(local_rows + node, mask=chosen, other=0)
        tl.store(line + depth, local, mask=chosen & (depth < longest))
        node = tl.load(above + node, mask=chosen, other=0)
        depth -= 1


def build_inputs_reference(
    trees: Trees,
    sequences: Sequences,
    picked: Picked,
    tables: Tensor,
    rows: StepRows,
    place: Tensor,
    path: Tensor,
) -> None:
    """`build_inputs` on the host, row by row."""
    for column, nothing in _PADDING.items():
        getattr(rows, column).fill_(nothing)
    place.fill_(-1)
    first = 0
    for slot, fed in enumerate((sequences.length - 1).tolist()):
        lines = {NO_NODE: [0]}
        if sequences.active[slot]:
            order = picked.row[slot].tolist()
            for node in range(len(order)):
                if order[node]:
                    lines[node] = [*lines[int(trees.parent[slot, node])], order[node]]
        for node, line in lines.items() if sequences.active[slot] else ():
            row, local, depth = first + line[-1], line[-1], len(line) - 1
            rows.slot[row], rows.node[row], rows.depth[row] = slot, node, depth
            rows.parent[row] = line[-2] if depth else -1
            token = sequences.root_token[slot] if node == NO_NODE else trees.token[slot, node]
            rows.token[row], rows.position[row] = token, fed + depth
            place[row] = tables[slot, (fed + local) // BLOCK] * BLOCK + (fed + local) % BLOCK
            path[row, : depth + 1] = torch.tensor(line)
        rows.start[slot], rows.count[slot] = first, len(lines) if sequences.active[slot] else 0
        first += int(rows.count[slot])


_PADDING = {"slot": -1, "node": NO_NODE, "parent": -1, "depth": 0, "token": 0, "position": 0}
