"""The likeliest tokens of rows with filters, gathered so that their edges are sought among few.

A row's vocabulary is dealt out to parts in chunks of 512, because tokens that are likely have low
ids. Each part keeps the scores that lie no further than ``cut`` below the row's largest, in a place
for 512: the widest of 32, 16, 8, 4 and 2 that leaves no more, or 0 if even 2 does. Besides, it sums
exp((score - largest) / T) over all its tokens. `kernels.sample_threshold` looks at the whole row
where too little was gathered, so nothing depends on how likely tokens are spread but time.

Two launches: the largest of each part; then what is near the largest of all. Bytes: the logits
twice (the second time from the L2 cache, if it has room for them) and 2 KiB per 4,096 tokens.
Rows without filters read a few words. What a part holds depends on its row alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sampling_options import (
    FLOATS,
    GREEDY_TEMPERATURE,
    INTS,
    LOG_MIN_P,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SamplingOptions,
)
from kernels.scores import (
    adjusted_scores,
    adjusted_scores_reference,
    check_scores,
    score_arguments,
)
from kernels.tree_layout import StepRows

CHUNK, CHUNKS = 512, 8  # of a part
CAPACITY = 512
_WIDEST = tl.constexpr(32.0)
_WARPS = 4


@dataclass(frozen=True, slots=True)
class Candidates:
    """float32 all: largest, cut, total [R, parts]; score [R, parts, CAPACITY], -inf where none."""

    largest: Tensor
    cut: Tensor
    total: Tensor
    score: Tensor

    @classmethod
    def empty(cls, rows: int, vocab: int, device: torch.device) -> Candidates:
        parts = triton.cdiv(vocab, CHUNK * CHUNKS)
        return cls(
            largest=torch.zeros(rows, parts, device=device),
            cut=torch.zeros(rows, parts, device=device),
            total=torch.zeros(rows, parts, device=device),
            score=torch.zeros(rows, parts, CAPACITY, device=device),
        )


@triton.jit
def has_filters(sampling, slot, vocab):
    """True if a filter can leave out a token of the slot's rows."""
    floats = sampling[0] + slot * FLOATS
    top_k = tl.load(sampling[1] + slot * INTS + TOP_K)
    filters = (top_k > 0) & (top_k < vocab)
    filters |= (tl.load(floats + TOP_P) < 1) | (tl.load(floats + LOG_MIN_P) > float("-inf"))
    return filters & (tl.load(floats + TEMPERATURE) > GREEDY_TEMPERATURE)


@triton.jit
def scores_of(place, first, BLOCK: tl.constexpr, MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr):
    """A row's scores from ``first`` on; a NaN is -inf: it never wins either."""
    logits, row, slot, sampling, rows, vocab = place
    columns = first + tl.arange(0, BLOCK)
    scores = adjusted_scores(
        logits, columns, first, row, slot, sampling, rows, vocab, BLOCK, MAX_BIASES, MAX_ENDS
    )
    return tl.where(scores == scores, scores, float("-inf"))


@triton.jit
def _largest_of_part(
    logits, row_stride, slots, sampling, rows, largest, vocab,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    if not has_filters(sampling, slot, vocab):
        return
    place = (logits + row.to(tl.int64) * row_stride, row, slot, sampling, rows, vocab)
    best = tl.full((CHUNK,), float("-inf"), tl.float32)
    for chunk in range(CHUNKS):
        first = (chunk * parts + part) * CHUNK
        if first < vocab:
            best = tl.maximum(best, scores_of(place, first, CHUNK, MAX_BIASES, MAX_ENDS))
    tl.store(largest + row * parts + part, tl.max(best, 0))


@triton.jit
def _widest_cut(
    place, largest, parts, part, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    CAPACITY: tl.constexpr, MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    """How far below the largest a part keeps scores; and the sum over all it has."""
    vocab, floats = place[5], place[3][0] + place[2] * FLOATS
    temperature = tl.load(floats + TEMPERATURE)
    scaled = tl.div_rn(largest, temperature)
    sums = tl.zeros((CHUNK,), tl.float32)
    near_1 = tl.zeros((CHUNK,), tl.int32)
    near_2, near_3, near_4, near_5 = near_1, near_1, near_1, near_1
    for chunk in range(CHUNKS):
        first = (chunk * parts + part) * CHUNK
        if first < vocab:
            scores = scores_of(place, first, CHUNK, MAX_BIASES, MAX_ENDS)
            sums += tl.exp(tl.div_rn(scores, temperature) - scaled)
            near_1 += (scores >= largest - _WIDEST).to(tl.int32)
            near_2 += (scores >= largest - _WIDEST / 2).to(tl.int32)
            near_3 += (scores >= largest - _WIDEST / 4).to(tl.int32)
            near_4 += (scores >= largest - _WIDEST / 8).to(tl.int32)
            near_5 += (scores >= largest - _WIDEST / 16).to(tl.int32)
    cut = tl.where(tl.sum(near_5, 0) <= CAPACITY, _WIDEST / 16, 0.0)
    cut = tl.where(tl.sum(near_4, 0) <= CAPACITY, _WIDEST / 8, cut)
    cut = tl.where(tl.sum(near_3, 0) <= CAPACITY, _WIDEST / 4, cut)
    cut = tl.where(tl.sum(near_2, 0) <= CAPACITY, _WIDEST / 2, cut)
    cut = tl.where(tl.sum(near_1, 0) <= CAPACITY, _WIDEST, cut)
    return cut, tl.sum(sums, 0)


@triton.jit
def _candidates_of_part(
    logits, row_stride, slots, sampling, rows, candidates, vocab,
    PARTS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, CAPACITY: tl.constexpr,
    MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    if not has_filters(sampling, slot, vocab):
        return
    place = (logits + row.to(tl.int64) * row_stride, row, slot, sampling, rows, vocab)
    every = tl.arange(0, PARTS)
    largest = tl.load(candidates[0] + row * parts + every, every < parts, other=float("-inf"))
    best = tl.max(largest, 0)
    cut, total = _widest_cut(
        place, best, parts, part, CHUNK, CHUNKS, CAPACITY, MAX_BIASES, MAX_ENDS
    )
    tl.store(candidates[1] + row * parts + part, cut)
    tl.store(candidates[2] + row * parts + part, total)
    kept = candidates[3] + (row * parts + part).to(tl.int64) * CAPACITY
    count = tl.zeros((), tl.int32)
    if cut > 0:
        for chunk in range(CHUNKS):
            first = (chunk * parts + part) * CHUNK
            if first < vocab:
                scores = scores_of(place, first, CHUNK, MAX_BIASES, MAX_ENDS)
                near = scores >= best - cut
                number = tl.cumsum(near.to(tl.int32), 0)
                tl.store(kept + count + number - 1, scores, mask=near)
                count += tl.max(number, 0)
    rest = tl.arange(0, CAPACITY)
    empty = tl.full((CAPACITY,), float("-inf"), tl.float32)
    tl.store(kept + rest, empty, mask=rest >= count)


def sample_candidates(
    logits: Tensor, options: SamplingOptions, rows: StepRows, out: Candidates
) -> Candidates:
    """Gather candidates of rows with filters; other rows and padding write nothing.

    Raises:
        ValueError: shapes do not belong together.
    """
    check_scores(logits, options, rows)
    count, vocab = len(rows.slot), options.seen.shape[1]
    parts = triton.cdiv(vocab, CHUNK * CHUNKS)
    if out.score.shape != (count, parts, CAPACITY):
        raise ValueError(f"out must be made for {count} rows and {vocab} tokens")
    row = (logits, logits.stride(0), rows.slot, *score_arguments(options, rows))
    biases, ends = options.biases.shape[1], options.end_ids.shape[1]
    _largest_of_part[(count, parts)](
        *row,
        out.largest,
        vocab,
        CHUNK=CHUNK,
        CHUNKS=CHUNKS,
        MAX_BIASES=biases,
        MAX_ENDS=ends,
        num_warps=_WARPS,
        enable_fp_fusion=False,
    )
    _candidates_of_part[(count, parts)](
        *row,
        (out.largest, out.cut, out.total, out.score),
        vocab,
        PARTS=triton.next_power_of_2(parts),
        CHUNK=CHUNK,
        CHUNKS=CHUNKS,
        CAPACITY=CAPACITY,
        MAX_BIASES=biases,
        MAX_ENDS=ends,
        num_warps=_WARPS,
        enable_fp_fusion=False,
    )
    return out


def sample_candidates_reference(
    logits: Tensor, row: int, options: SamplingOptions, rows: StepRows
) -> tuple[Tensor, Tensor, Tensor]:
    """cut [parts], total [parts] and score [parts, CAPACITY] of one row."""
    scores = adjusted_scores_reference(logits, row, options, rows)
    temperature = options.floats[int(rows.slot[row]), TEMPERATURE.value]
    parts = triton.cdiv(len(scores), CHUNK * CHUNKS)
    part_of = torch.arange(len(scores), device=scores.device) // CHUNK % parts
    largest = scores.max()
    cuts, totals = scores.new_zeros(parts), scores.new_zeros(parts)
    kept = scores.new_full((parts, CAPACITY), -torch.inf)
    for part in range(parts):
        own = scores[part_of == part]
        totals[part] = torch.exp(own / temperature - largest / temperature).sum()
        for cut in (_WIDEST.value / 2**narrower for narrower in range(5)):
            near = own[own >= largest - cut]
            if len(near) <= CAPACITY:
                cuts[part] = cut
                kept[part, : len(near)] = near
                break
    return cuts, totals, kept
