"""Which guesses become tokens, and where a sequence ends: the commits of a step, on the device.

A node is accepted if its token is the target's choice at its parent: from the root on, the row
below the current one whose token was chosen is the next. The choices along that path are the
commit's tokens; they are cut one by one at the first that ends the sequence: EOS or a stop id is
not delivered (STOP), the token that reaches the limit is (LENGTH). A sequence with a row whose
logits are not finite gets no tokens (NOT_FINITE).

One warp per slot, a step of the walk per token; all integers, so that the result is exact. Bytes:
12 per row and 8 per token. Writes `Commits` but for ``hit``, and counts what was delivered in
``seen`` where the slot has penalties.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import tree_layout
from kernels.sample_coupled import Choices
from kernels.sampling_options import (
    ENDS,
    FLOATS,
    FREQUENCY,
    INTS,
    PRESENCE,
    REPETITION,
    WRITTEN,
    SamplingOptions,
)
from kernels.tree_layout import Commits, Sequences, StepRows

_STOP = tl.constexpr(tree_layout.STOP)
_LENGTH = tl.constexpr(tree_layout.LENGTH)
_NOT_FINITE = tl.constexpr(tree_layout.NOT_FINITE)
_WRITTEN = tl.constexpr(WRITTEN)
_ENDS_AT_ONCE = tl.constexpr(32)
_FEWEST_ROWS = 32  # a warp's lanes: one machine code for all that have no more


@triton.jit
def _ends(token, end_ids, count):
    """1 if the token is one of the slot's ends."""
    found = tl.zeros((), tl.int32)
    for first in range(0, count, _ENDS_AT_ONCE):
        places = first + tl.arange(0, _ENDS_AT_ONCE)
        ids = tl.load(end_ids + places, mask=places < count, other=-1)
        found |= tl.max((ids == token).to(tl.int32), 0)
    return found


@triton.jit
def _penalizes(floats):
    repeats = tl.load(floats + REPETITION) != 1.0
    return repeats | (tl.load(floats + FREQUENCY) != 0.0) | (tl.load(floats + PRESENCE) != 0.0)


@triton.jit
def _tree_accept(
    rows, choices, sequences, sampling, commits, vocab,
    LONGEST: tl.constexpr, ROWS: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    starts, counts, parents, tokens = rows
    lengths, limits = sequences
    floats, ints, end_ids, seen = sampling
    bases, paths, path_rows, committed, delivered, finishes = commits
    slot = tl.program_id(0)
    length = tl.load(lengths + slot)
    start, count = tl.load(starts + slot), tl.load(counts + slot)
    local = tl.arange(0, ROWS)
    there = local < count
    chosen = tl.load(choices[0] + start + local, mask=there, other=-1)
    finite = tl.min(tl.load(choices[1] + start + local, mask=there, other=1), 0)
    token = tl.load(tokens + start + local, mask=there, other=-1)
    parent = tl.load(parents + start + local, mask=there, other=-2)
    end_count = tl.load(ints + slot * INTS + ENDS)
    end_ids += slot * MAX_ENDS
    seen += slot.to(tl.int64) * vocab
    penalizes = _penalizes(floats + slot * FLOATS)
    budget = tl.load(limits + slot) - length
    path, taken = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    finish = tl.where((count > 0) & (finite == 0), _NOT_FINITE, 0)
    current = tl.where((count > 0) & (finite != 0), 0, ROWS)
    while (current < ROWS) & (path < LONGEST):
        choice = tl.sum(tl.where(local == current, chosen, 0), 0)
        tl.store(path_rows + slot * LONGEST + path, current)
        tl.store(committed + slot * LONGEST + path, choice)
        path += 1
        if finish == 0:
            if _ends(choice, end_ids, end_count) != 0:
                finish = tl.zeros((), tl.int32) + _STOP
            else:
                taken += 1
                finish = tl.where(taken >= budget, _LENGTH, 0)
                if penalizes:
                    tl.atomic_add(seen + choice, _WRITTEN)
        below = (parent == current) & (token == choice)
        current = tl.min(tl.where(below, local, ROWS), 0)
    tl.store(bases + slot, length)
    tl.store(paths + slot, path)
    tl.store(delivered + slot, taken)
    tl.store(finishes + slot, finish)


def tree_accept(
    rows: StepRows,
    choices: Choices,
    sequences: Sequences,
    options: SamplingOptions,
    out: Commits,
    most_rows: int,
) -> Commits:
    """Write the commit of every slot to ``out``.

    Args:
        most_rows: rows that one slot can have, a power of two or not.

    Raises:
        ValueError: shapes do not belong together.
    """
    slots = len(rows.start)
    if not len(sequences.length) == len(options.ints) == len(out.count) == slots:
        raise ValueError(f"sequences, options and out must have {slots} slots, as rows have")
    if len(choices.token) < len(rows.slot):
        raise ValueError(f"choices must have {len(rows.slot)} rows, as rows have")
    _tree_accept[(slots,)](
        (rows.start, rows.count, rows.parent, rows.token),
        (choices.token, choices.sound),
        (sequences.length, sequences.limit),
        (options.floats, options.ints, options.end_ids, options.seen),
        (out.base, out.path, out.rows, out.tokens, out.count, out.finish),
        options.seen.shape[1],
        LONGEST=out.tokens.shape[1],
        ROWS=max(triton.next_power_of_2(most_rows), _FEWEST_ROWS),
        MAX_ENDS=options.end_ids.shape[1],
        num_warps=1,
    )
    return out


def tree_accept_reference(
    tokens: Tensor, parents: Tensor, chosen: Tensor, budget: int, ends: Tensor
) -> tuple[list[int], Tensor, int]:
    """One sound sequence: rows of the path, the tokens delivered and how it goes on.

    Args:
        tokens, parents, chosen: per local row, see `StepRows`: int [rows].
    """
    path = [0]
    while True:
        below = (parents == path[-1]) & (tokens == chosen[path[-1]])
        if not below.any():
            break
        path.append(int(below.nonzero()[0]))
    committed = chosen[torch.tensor(path, device=chosen.device)]
    stops = torch.isin(committed, ends)
    room = int(stops.nonzero()[0]) if stops.any() else len(committed)
    if budget <= room:
        return path, committed[:budget], tree_layout.LENGTH
    finish = tree_layout.STOP if room < len(committed) else tree_layout.GOES_ON
    return path, committed[:room], finish
