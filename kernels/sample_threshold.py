"""The least score that top-k, top-p and min-p leave in, row by row.

Filters apply in this order, each over what the one before has left, and ties at an edge stay in:
top-k keeps scores that are not below the k-th largest; top-p keeps a token while the mass of
more likely ones, softmax(scores / T), is below p; min-p keeps score / T >= its maximum + log(p).
All three keep what lies above some score, so a row needs one number, and nothing of the size of
the vocabulary is written.

The k-th largest is found exactly, in at most 16 counts over the row: floats are compared as
integers of the same order, and each count cuts the interval into four. The edge of the nucleus is
found likewise in the bits of the probabilities; a search ends early once one token is left to
doubt. A mass is off by at most 2^-24 * (V / 2048 + 11) of itself, the order of its additions is
fixed by V alone, so that a row has one threshold wherever it stands.

logits: float32, bfloat16 or float16 [R, >= V]. out: float32 [R], -inf for rows without filter.
Bytes: a greedy row and one without filters read a few words; others read the row about 3 times,
plus 4 to 16 times for top-k and as often for top-p, mostly from the L2 cache.
"""

from __future__ import annotations

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

BLOCK = 2048
_WARPS = 16
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _order(x):
    """Float32 to int32 of the same order; both zeros are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & _MAGNITUDE)


@triton.jit
def _tile(place, first, BLOCK: tl.constexpr, MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr):
    """A row's scores from ``first`` on; a NaN is -inf: it never wins either."""
    logits, row, slot, options, rows, vocab = place
    columns = first + tl.arange(0, BLOCK)
    scores = adjusted_scores(
        logits, columns, first, row, slot, options, rows, vocab, BLOCK, MAX_BIASES, MAX_ENDS
    )
    return tl.where(scores == scores, scores, float("-inf"))


@triton.jit
def _probabilities(scores, softmax):
    """Shares of the scores that are not below the edge of top-k; 0 for the rest."""
    edge, temperature, largest, total = softmax
    weights = tl.exp(tl.div_rn(scores, temperature) - largest)
    return tl.where(_order(scores) >= edge, tl.div_rn(weights, total), 0.0)


@triton.jit
def _search(
    place, softmax, top, enough, MASS: tl.constexpr,
    BLOCK: tl.constexpr, MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    """The largest key at or above which lies ``enough``, or another that parts the same tokens.

    Keys are `_order` of scores, and enough is a count; with MASS of probabilities, and a mass.
    top: the largest key of the row.
    """
    vocab = place[5]
    low = tl.zeros((), tl.int64) if MASS else tl.zeros((), tl.int64) - 2**31
    high = top.to(tl.int64) + 1
    all_low, none_high = vocab + 0, vocab * 0  # tokens at or above the two ends
    exact = False
    while (high - low > 1) & (all_low - none_high > 1) & (not exact):
        step = high - low
        one, two, three = low + step // 4, low + step // 2, low + 3 * step // 4
        mass_1 = tl.zeros((BLOCK,), tl.float32)
        mass_2, mass_3 = mass_1, mass_1
        count_1 = tl.zeros((BLOCK,), tl.int32)
        count_2, count_3 = count_1, count_1
        for first in range(0, vocab, BLOCK):
            scores = _tile(place, first, BLOCK, MAX_BIASES, MAX_ENDS)
            inside = first + tl.arange(0, BLOCK) < vocab
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
def _sample_threshold(
    logits, row_stride, slots, options, rows, out, vocab,
    BLOCK: tl.constexpr, MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    floats, ints = options[0] + slot * FLOATS, options[1] + slot * INTS
    temperature, top_p = tl.load(floats + TEMPERATURE), tl.load(floats + TOP_P)
    log_min_p, top_k = tl.load(floats + LOG_MIN_P), tl.load(ints + TOP_K)
    cuts = (top_k > 0) & (top_k < vocab)
    if (temperature <= GREEDY_TEMPERATURE) | ~(cuts | (top_p < 1) | (log_min_p > float("-inf"))):
        tl.store(out + row, float("-inf"))
        return
    place = (logits + row.to(tl.int64) * row_stride, row, slot, options, rows, vocab)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, vocab, BLOCK):
        best = tl.maximum(best, _tile(place, first, BLOCK, MAX_BIASES, MAX_ENDS))
    largest = tl.max(best, 0)
    scaled = tl.div_rn(largest, temperature)
    edge, likely = tl.zeros((), tl.int64) - 2**31, tl.zeros((), tl.int64)
    total = tl.full((), 1.0, tl.float32)
    if cuts:
        softmax = (edge, temperature, scaled, total)
        top, count = _order(largest), top_k + 0.0
        edge = _search(place, softmax, top, count, False, BLOCK, MAX_BIASES, MAX_ENDS)
    if top_p < 1:
        softmax = (edge, temperature, scaled, total)
        sums = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, vocab, BLOCK):
            sums += _probabilities(_tile(place, first, BLOCK, MAX_BIASES, MAX_ENDS), softmax)
        total = tl.sum(sums, 0)
        softmax = (edge, temperature, scaled, total)
        top = _order(tl.div_rn(1.0, total))
        likely = _search(place, softmax, top, top_p, True, BLOCK, MAX_BIASES, MAX_ENDS)
    softmax = (edge, temperature, scaled, total)
    least = tl.full((BLOCK,), float("inf"), tl.float32)
    for first in range(0, vocab, BLOCK):
        scores = _tile(place, first, BLOCK, MAX_BIASES, MAX_ENDS)
        kept = (_order(scores) >= edge) & (_order(_probabilities(scores, softmax)) >= likely)
        kept &= ~(tl.div_rn(scores, temperature) < scaled + log_min_p)
        kept &= first + tl.arange(0, BLOCK) < vocab
        least = tl.minimum(least, tl.where(kept, scores, float("inf")))
    tl.store(out + row, tl.min(least, 0))


def sample_threshold(
    logits: Tensor, options: SamplingOptions, rows: StepRows, out: Tensor
) -> Tensor:
    """Write every row's threshold to ``out``, float32 [R]; padding rows write nothing.

    Raises:
        ValueError: shapes do not belong together.
    """
    check_scores(logits, options, rows)
    if out.shape != rows.slot.shape or out.dtype != torch.float32:
        raise ValueError(f"out must be float32 [{len(rows.slot)}]")
    _sample_threshold[(len(rows.slot),)](
        logits,
        logits.stride(0),
        rows.slot,
        *score_arguments(options, rows),
        out,
        options.seen.shape[1],
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
    return torch.where(kept, scores, torch.inf).min()
