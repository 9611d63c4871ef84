"""Logits after penalties, logit bias and min_tokens: a part of a row at a time, never stored.

In this order: repetition (tokens of prompt, output or the row's own path: positive logits are
divided, others multiplied), frequency and presence (tokens of output or path), bias, and -inf for
EOS and stop ids while fewer than min_tokens exist. Each operation is rounded to float32 on its
own: compile with ``enable_fp_fusion=False``.

A row's path are the tokens of its node and of the nodes above; what is committed is in ``seen``.
Biases and ends of ids that the vocabulary does not have are left out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sampling_options import (
    BIASES,
    ENDS,
    FIRST_END,
    FLOATS,
    FREQUENCY,
    INTS,
    PRESENCE,
    REPETITION,
    SamplingOptions,
)
from kernels.tree_layout import StepRows


@triton.jit
def _listed(ids, count, first, block: tl.constexpr, size: tl.constexpr):
    """Which entries of ascending ``ids`` [size] fall into first..first+block-1: from, to."""
    places = tl.arange(0, size)
    listed = tl.load(ids + places, mask=places < count, other=0x7FFFFFFF)
    below = tl.sum((listed < first).to(tl.int32), 0)
    return below, tl.sum((listed < first + block).to(tl.int32), 0)


@triton.jit
def _penalized(scores, columns, inside, row, slot, sampling, rows, vocab):
    floats, _, _, _, _, seen = sampling
    starts, parents, depths, tokens, _ = rows
    counts = tl.load(seen + slot.to(tl.int64) * vocab + columns, mask=inside, other=0)
    start = tl.load(starts + slot)
    above = row
    for _ in range(tl.load(depths + row)):
        counts += tl.where(columns == tl.load(tokens + above), 2, 0)
        above = start + tl.load(parents + above)
    floats += slot * FLOATS
    repetition = tl.load(floats + REPETITION)
    repeated = tl.where(scores > 0, tl.div_rn(scores, repetition), scores * repetition)
    scores = tl.where(counts > 0, repeated, scores)
    written = counts >> 1
    less = tl.load(floats + FREQUENCY) * written.to(tl.float32) + tl.load(floats + PRESENCE)
    return tl.where(written > 0, scores - less, scores)


@triton.jit
def adjusted_scores(
    logits, columns, first, row, slot, sampling, rows, vocab,
    BLOCK: tl.constexpr, MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    """Scores of ``columns`` = first..first+BLOCK-1 of a row, float32; -inf behind the vocabulary.

    logits: pointer to the row's first. sampling, rows: tuples of pointers, see `score_arguments`.
    """
    floats, ints, bias_ids, biases, end_ids, _ = sampling
    inside = columns < vocab
    scores = tl.load(logits + columns, mask=inside, other=float("-inf")).to(tl.float32)
    own = floats + slot * FLOATS
    changes = (tl.load(own + REPETITION) != 1.0) | (tl.load(own + FREQUENCY) != 0.0)
    if changes | (tl.load(own + PRESENCE) != 0.0):
        scores = _penalized(scores, columns, inside, row, slot, sampling, rows, vocab)
    ints += slot * INTS
    count = tl.load(ints + BIASES)
    if count > 0:
        ids, values = bias_ids + slot * MAX_BIASES, biases + slot * MAX_BIASES
        begin, end = _listed(ids, count, first, BLOCK, MAX_BIASES)
        for place in range(begin, end):
            here = columns == tl.load(ids + place)
            scores = tl.where(here, scores + tl.load(values + place), scores)
    positions = rows[4]
    count = tl.load(ints + ENDS)
    if (count > 0) & (tl.load(positions + row) + 1 < tl.load(ints + FIRST_END)):
        ids = end_ids + slot * MAX_ENDS
        begin, end = _listed(ids, count, first, BLOCK, MAX_ENDS)
        for place in range(begin, end):
            scores = tl.where(columns == tl.load(ids + place), float("-inf"), scores)
    return scores


def score_arguments(
    options: SamplingOptions, rows: StepRows
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What `adjusted_scores` takes as ``sampling`` and ``rows``.

    No parameter of a kernel can be called ``options``: Triton's launcher has one.
    """
    return (
        (
            options.floats,
            options.ints,
            options.bias_ids,
            options.biases,
            options.end_ids,
            options.seen,
        ),
        (rows.start, rows.parent, rows.depth, rows.token, rows.position),
    )


def check_scores(logits: Tensor, options: SamplingOptions, rows: StepRows) -> None:
    """Raises ValueError if the arguments do not belong together."""
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError("logits must be [rows, vocab] with adjacent columns")
    if len(rows.slot) > len(logits):
        raise ValueError(f"logits must have {len(rows.slot)} rows, not {len(logits)}")
    if options.seen.shape[1] > logits.shape[1]:
        raise ValueError(f"logits must have {options.seen.shape[1]} columns or more")


def adjusted_scores_reference(
    logits: Tensor, row: int, options: SamplingOptions, rows: StepRows
) -> Tensor:
    """Scores of one row: float32 [vocab]."""
    slot = int(rows.slot[row])
    vocab = options.seen.shape[1]
    floats, ints = options.floats[slot], options.ints[slot]
    scores = logits[row, :vocab].float().clone()
    counts = options.seen[slot].clone()
    above = row
    for _ in range(int(rows.depth[row])):
        counts[rows.token[above]] += 2
        above = int(rows.start[slot] + rows.parent[above])
    penalty = floats[REPETITION.value]
    repeated = torch.where(scores > 0, scores / penalty, scores * penalty)
    scores = torch.where(counts > 0, repeated, scores)
    less = floats[FREQUENCY.value] * (counts >> 1) + floats[PRESENCE.value]
    scores = torch.where(counts > 1, scores - less, scores)
    ids = options.bias_ids[slot, : int(ints[BIASES.value])].long()
    known = ids < vocab
    scores[ids[known]] += options.biases[slot, : len(ids)][known]
    if rows.position[row] + 1 < ints[FIRST_END.value]:
        ends = options.end_ids[slot, : int(ints[ENDS.value])].long()
        scores[ends[ends < vocab]] = -torch.inf
    return scores
