"""The least score that top-k, top-p and min-p leave in, row by row.

Filters apply in this order, each over what the one before has left, and ties at an edge stay in:
top-k keeps scores that are not below the k-th largest; top-p keeps a token while the mass of
more likely ones, softmax(scores / T), is below p; min-p keeps score / T >= its maximum + log(p).
All three keep what lies above some score, so a row needs one number, and nothing of the size of
the vocabulary is written.

The k-th largest is found exactly, in at most 16 counts: floats are compared as integers of the
same order, and each count cuts the interval into four. The edge of the nucleus is found likewise
in the bits of the probabilities; a search ends early once one token is left to doubt. It looks at
`kernels.sample_candidates` where those surely hold both edges, else at the whole row.

A mass is off by at most 2^-24 * (V / 2048 + 11) of itself; the order of its additions depends on
the row alone, so that a row has one threshold wherever it stands. out: float32 [R], -inf for rows
without filters. Bytes: up to 34 times the candidates, from the L1 or L2 cache; or the row as often.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sample_candidates import (
    CAPACITY,
    Candidates,
    has_filters,
    sample_candidates,
    scores_of,
)
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
from kernels.scores import adjusted_scores_reference, score_arguments
from kernels.tree_layout import StepRows

BLOCK = 2048
_WARPS = 16
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_MARGIN = tl.constexpr(1.0001)  # of masses that are added in different orders


@triton.jit
def _order(x):
    """Float32 to int32 of the same order; both zeros are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & _MAGNITUDE)


@triton.jit
def _tile(
    place, held, first, HELD: tl.constexpr, BLOCK: tl.constexpr,
    MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    """Scores from ``first`` on: of the candidates if HELD, else of the row."""
    if HELD:
        scores, extent, least = held
        at = first + tl.arange(0, BLOCK)
        found = tl.load(scores + at, mask=at < extent, other=float("-inf"))
        return tl.where(found >= least, found, float("-inf"))
    else:
        return scores_of(place, first, BLOCK, MAX_BIASES, MAX_ENDS)


@triton.jit
def _probabilities(scores, softmax):
    """Shares of the scores that are not below the edge of top-k; 0 for the rest."""
    edge, temperature, largest, total = softmax
    weights = tl.exp(tl.div_rn(scores, temperature) - largest)
    return tl.where(_order(scores) >= edge, tl.div_rn(weights, total), 0.0)


@triton.jit
def _search(
    place, held, extent, softmax, top, enough, MASS: tl.constexpr, HELD: tl.constexpr,
    BLOCK: tl.constexpr, MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    """The largest key at or above which lies ``enough``, or another that parts the same tokens.

    Keys are `_order` of scores, and enough is a count; with MASS of probabilities, and a mass.
    top: the largest key of the row.
    """
    low = tl.zeros((), tl.int64) if MASS else tl.zeros((), tl.int64) - 2**31
    high = top.to(tl.int64) + 1
    # Tokens at or above the two ends.
    all_low, none_high = tl.zeros((), tl.int32) + extent, tl.zeros((), tl.int32)
    exact = high < low
    while (high - low > 1) & (all_low - none_high > 1) & ~exact:
        step = high - low
        one, two, three = low + step // 4, low + step // 2, low + 3 * step // 4
        mass_1 = tl.zeros((BLOCK,), tl.float32)
        mass_2, mass_3 = mass_1, mass_1
        count_1 = tl.zeros((BLOCK,), tl.int32)
        count_2, count_3 = count_1, count_1
        for first in range(0, extent, BLOCK):
            scores = _tile(place, held, first, HELD, BLOCK, MAX_BIASES, MAX_ENDS)
            inside = first + tl.arange(0, BLOCK) < extent
            if MASS:
                weights = _probabilities(scores, softmax)
                keys = _order(weights)
                mass_1 += tl.where(keys >= one, weights, 0.0)
                mass_2 += tl.where(keys >= two, weights, 0.0)
                mass_3 += tl.where(keys >= three, weights, 0.0)
            else:
                keys = _order(scores)
            count_1 += (inside & (keys >= one)).to(tl.int32)
            count_2 += (inside & (keys >= two)).to(tl.int32)
            count_3 += (inside & (keys >= three)).to(tl.int32)
        held_1, held_2, held_3 = tl.sum(count_1, 0), tl.sum(count_2, 0), tl.sum(count_3, 0)
        has_1, has_2, has_3 = held_1 + 0.0, held_2 + 0.0, held_3 + 0.0
        if MASS:
            has_1, has_2, has_3 = tl.sum(mass_1, 0), tl.sum(mass_2, 0), tl.sum(mass_3, 0)
        if has_3 >= enough:
            low, all_low, exact = three, held_3, has_3 == enough
        elif has_2 >= enough:
            low, all_low, exact = two, held_2, has_2 == enough
            high, none_high = three, held_3
        elif has_1 >= enough:
            low, all_low, exact = one, held_1, has_1 == enough
            high, none_high = two, held_2
        else:
            high, none_high = one, held_1
    return low


@triton.jit
def _least_kept(
    place, held, extent, best, total, HELD: tl.constexpr,
    BLOCK: tl.constexpr, MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    """The least of the row's scores, or of its candidates', that all filters leave in.

    best, total: the row's largest score; its sum of exp((score - best) / T).
    """
    slot, sampling, vocab = place[2], place[3], place[5]
    floats = sampling[0] + slot * FLOATS
    temperature, top_p = tl.load(floats + TEMPERATURE), tl.load(floats + TOP_P)
    top_k = tl.load(sampling[1] + slot * INTS + TOP_K)
    scaled = tl.div_rn(best, temperature)
    edge, likely = tl.zeros((), tl.int64) - 2**31, tl.zeros((), tl.int64)
    if (top_k > 0) & (top_k < vocab):
        softmax = (edge, temperature, scaled, total)
        top, count = _order(best), top_k + 0.0
        edge = _search(
            place, held, extent, softmax, top, count, False, HELD, BLOCK, MAX_BIASES, MAX_ENDS
        )
        softmax = (edge, temperature, scaled, tl.full((), 1.0, tl.float32))
        sums = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, extent, BLOCK):
            scores = _tile(place, held, first, HELD, BLOCK, MAX_BIASES, MAX_ENDS)
            sums += _probabilities(scores, softmax)
        total = tl.sum(sums, 0)
    softmax = (edge, temperature, scaled, total)
    if top_p < 1:
        top = _order(tl.div_rn(1.0, total))
        likely = _search(
            place, held, extent, softmax, top, top_p, True, HELD, BLOCK, MAX_BIASES, MAX_ENDS
        )
    floor = scaled + tl.load(floats + LOG_MIN_P)
    least = tl.full((BLOCK,), float("inf"), tl.float32)
    for first in range(0, extent, BLOCK):
        scores = _tile(place, held, first, HELD, BLOCK, MAX_BIASES, MAX_ENDS)
        kept = (_order(scores) >= edge) & (_order(_probabilities(scores, softmax)) >= likely)
        kept &= ~(tl.div_rn(scores, temperature) < floor) & (scores > float("-inf"))
        least = tl.minimum(least, tl.where(kept, scores, float("inf")))
    return tl.min(least, 0)


@triton.jit
def _hold_the_edges(place, held, best, total, BLOCK: tl.constexpr):
    """True if all that the filters leave in is surely among the candidates."""
    slot, sampling, vocab = place[2], place[3], place[5]
    floats = sampling[0] + slot * FLOATS
    temperature, top_p = tl.load(floats + TEMPERATURE), tl.load(floats + TOP_P)
    log_min_p, top_k = tl.load(floats + LOG_MIN_P), tl.load(sampling[1] + slot * INTS + TOP_K)
    scaled = tl.div_rn(best, temperature)
    counts, sums = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.float32)
    for first in range(0, held[1], BLOCK):
        scores = _tile(place, held, first, True, BLOCK, 1, 1)
        counts += (scores > float("-inf")).to(tl.int32)
        sums += tl.exp(tl.div_rn(scores, temperature) - scaled)
    by_count = tl.sum(counts, 0) >= top_k
    by_mass = tl.sum(sums, 0) >= top_p * total * _MARGIN
    by_floor = tl.div_rn(held[2], temperature) < scaled + log_min_p
    known = tl.where(top_p < 1, by_mass, by_floor)
    return tl.where((top_k > 0) & (top_k < vocab), by_count, known)


@triton.jit
def _sample_threshold(
    logits, row_stride, slots, sampling, rows, candidates, out, vocab, parts,
    PARTS: tl.constexpr, CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr, MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    if not has_filters(sampling, slot, vocab):
        tl.store(out + row, float("-inf"))
        return
    place = (logits + row.to(tl.int64) * row_stride, row, slot, sampling, rows, vocab)
    part = tl.arange(0, PARTS)
    there = part < parts
    at = row * parts + part
    best = tl.max(tl.load(candidates[0] + at, mask=there, other=float("-inf")), 0)
    cut = tl.min(tl.load(candidates[1] + at, mask=there, other=float("inf")), 0)
    total = tl.sum(tl.load(candidates[2] + at, mask=there, other=0.0), 0)
    extent = parts * CAPACITY
    held = (candidates[3] + row.to(tl.int64) * extent, extent, best - cut)
    enough = cut < 0
    if cut > 0:
        enough = _hold_the_edges(place, held, best, total, BLOCK)
    if enough:
        least = _least_kept(place, held, extent, best, total, True, BLOCK, MAX_BIASES, MAX_ENDS)
    else:
        least = _least_kept(place, held, vocab, best, total, False, BLOCK, MAX_BIASES, MAX_ENDS)
    tl.store(out + row, least)


def sample_threshold(
    logits: Tensor, options: SamplingOptions, rows: StepRows, candidates: Candidates, out: Tensor
) -> Tensor:
    """Write every row's threshold to ``out``, float32 [R]; padding rows write nothing.

    Args:
        candidates: workspace.

    Raises:
        ValueError: shapes do not belong together.
    """
    sample_candidates(logits, options, rows, candidates)
    if out.shape != rows.slot.shape or out.dtype != torch.float32:
        raise ValueError(f"out must be float32 [{len(rows.slot)}]")
    parts = candidates.cut.shape[1]
    _sample_threshold[(len(rows.slot),)](
        logits,
        logits.stride(0),
        rows.slot,
        *score_arguments(options, rows),
        (candidates.largest, candidates.cut, candidates.total, candidates.score),
        out,
        options.seen.shape[1],
        parts,
        PARTS=triton.next_power_of_2(parts),
        CAPACITY=CAPACITY,
        BLOCK=BLOCK,
        MAX_BIASES=options.biases.shape[1],
        MAX_ENDS=options.end_ids.shape[1],
        num_warps=_WARPS,
        enable_fp_fusion=False,
    )
    return out


def sample_threshold_reference(
    logits: Tensor, row: int, options: SamplingOptions, rows: StepRows
) -> Tensor:
    """The least score that is left in a row: float32 scalar."""
    slot = int(rows.slot[row])
    floats, ints = options.floats[slot], options.ints[slot]
    scores = adjusted_scores_reference(logits, row, options, rows)
    temperature, top_k = floats[TEMPERATURE.value], int(ints[TOP_K.value])
    top_p, log_min_p = floats[TOP_P.value], floats[LOG_MIN_P.value]
    cuts = 0 < top_k < len(scores)
    filters = cuts or top_p < 1 or log_min_p > -torch.inf
    if temperature <= GREEDY_TEMPERATURE.value or not filters:
        return scores.new_tensor(-torch.inf)
    kept = torch.ones_like(scores, dtype=torch.bool)
    if cuts:
        kept = scores >= scores.topk(top_k).values[-1]
    if top_p < 1:
        shares = (scores / temperature).masked_fill(~kept, -torch.inf).softmax(0)
        ordered = shares.sort(descending=True).values
        before = ordered.cumsum(0) - ordered
        count = max(1, int((before < top_p).sum()))
        kept &= shares >= ordered[count - 1]
    scaled = scores / temperature
    kept &= scaled >= scaled.max() + log_min_p
    return torch.where(kept & (scores > -torch.inf), scores, torch.inf).min()
