"""The token of every row: coupled sampling without a probability over the vocabulary in memory.

    choice = argmax over ids with l' >= threshold of  T * G(seed, choice, position + 1, id) + l'

l': `kernels.scores`; the threshold: `kernels.sample_threshold`; G: `kernels.noise`. Up to
T = 0.001 there is neither noise nor threshold. The lowest id wins ties, a NaN never wins. Product
and sum are rounded to float32 one after the other: compile with ``enable_fp_fusion=False``.

Where a slot asks for log-probabilities, its rows also get ``raw[choice] - log sum exp(raw)`` of the
raw logits, within 1e-5 of the exact value; elsewhere no softmax is computed at all.

logits: float32, bfloat16 or float16 [R, >= V], V the real vocabulary: what pads it is not read.
Split: each program of the first kernel takes SPLIT tokens of one row, the second one's program
puts a row's parts together in order. Both depend on V alone, so a row's result is the same alone
and among others. Bytes: the logits once, 20 bytes per part; rows with filters see the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.noise import (
    gumbel,
    gumbel_reference,
    noise_hash,
    noise_hash_reference,
    noise_key,
    noise_key_reference,
)
from kernels.sample_candidates import Candidates
from kernels.sample_threshold import sample_threshold, sample_threshold_reference
from kernels.sampling_options import (
    CHOICE,
    FLOATS,
    GREEDY_TEMPERATURE,
    INTS,
    LOGPROBS,
    SEED_HIGH,
    SEED_LOW,
    TEMPERATURE,
    SamplingOptions,
)
from kernels.scores import (
    adjusted_scores,
    adjusted_scores_reference,
    check_scores,
    score_arguments,
)
from kernels.tree_layout import StepRows

BLOCK = 1024
SPLIT = 4 * BLOCK
_WARPS = 4
_WORD = 2**32


@dataclass(frozen=True, slots=True)
class Choices:
    """token: int32 [R]. sound: int32 [R], 1 if all the row's logits are finite. logprob: float32
    [R], only where it was asked for. What padding rows hold is never written.

    threshold [R], candidates, and [R, parts] of each: best, best_id, largest, total, finite:
    workspace.
    """

    token: Tensor
    sound: Tensor
    logprob: Tensor
    threshold: Tensor
    candidates: Candidates
    best: Tensor
    best_id: Tensor
    largest: Tensor
    total: Tensor
    finite: Tensor

    @classmethod
    def empty(cls, rows: int, vocab: int, device: torch.device) -> Choices:
        whole, parts = torch.int32, (rows, triton.cdiv(vocab, SPLIT))
        return cls(
            token=torch.zeros(rows, dtype=whole, device=device),
            sound=torch.zeros(rows, dtype=whole, device=device),
            logprob=torch.zeros(rows, device=device),
            threshold=torch.zeros(rows, device=device),
            candidates=Candidates.empty(rows, vocab, device),
            best=torch.zeros(parts, device=device),
            best_id=torch.zeros(parts, dtype=whole, device=device),
            largest=torch.zeros(parts, device=device),
            total=torch.zeros(parts, device=device),
            finite=torch.zeros(parts, dtype=whole, device=device),
        )


@triton.jit
def _key(ints, position):
    return noise_key(
        tl.load(ints + SEED_LOW), tl.load(ints + SEED_HIGH), tl.load(ints + CHOICE), position
    )


@triton.jit
def _best_of_part(
    logits, row_stride, slots, sampling, rows, thresholds, parts, vocab,
    FILTERS: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
    MAX_BIASES: tl.constexpr, MAX_ENDS: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    ints = sampling[1] + slot * INTS
    temperature = tl.load(sampling[0] + slot * FLOATS + TEMPERATURE)
    greedy = temperature <= GREEDY_TEMPERATURE
    wanted = tl.load(ints + LOGPROBS) != 0
    threshold = tl.full((), float("-inf"), tl.float32)
    if FILTERS:
        threshold = tl.load(thresholds + row)
    key = _key(ints, tl.load(rows[4] + row) + 1)
    logits += row.to(tl.int64) * row_stride
    start = part * SPLIT
    best, best_id = tl.full((), float("-inf"), tl.float32), start
    largest, total = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.float32)
    finite = tl.full((), 1, tl.int32)
    for first in range(start, tl.minimum(start + SPLIT, vocab), BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < vocab
        raw = tl.load(logits + columns, mask=inside, other=0.0).to(tl.float32)
        finite &= tl.min((tl.abs(raw) < float("inf")).to(tl.int32), 0)
        if wanted:
            seen = tl.where(inside, raw, float("-inf"))
            newest = tl.maximum(largest, tl.max(seen, 0))
            total = total * tl.exp(largest - newest) + tl.sum(tl.exp(seen - newest), 0)
            largest = newest
        scores = adjusted_scores(
            logits, columns, first, row, slot, sampling, rows, vocab, BLOCK, MAX_BIASES, MAX_ENDS
        )
        scores = tl.where(scores == scores, scores, float("-inf"))
        if not greedy:
            if tl.max(scores, 0) >= threshold:
                noisy = temperature * gumbel(noise_hash(key, columns)) + scores
                scores = tl.where(scores >= threshold, noisy, float("-inf"))
            else:
                scores = tl.full((BLOCK,), float("-inf"), tl.float32)
        found = tl.max(scores, 0)
        if found > best:
            best_id = tl.min(tl.where(scores == found, columns, vocab), 0)
            best = found
    place = row * tl.num_programs(1) + part
    tl.store(parts[0] + place, best)
    tl.store(parts[1] + place, best_id)
    tl.store(parts[2] + place, largest)
    tl.store(parts[3] + place, total)
    tl.store(parts[4] + place, finite)


@triton.jit
def _best_of_row(
    logits, row_stride, slots, ints, parts, token, sound, logprob, count, PARTS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    part = tl.arange(0, PARTS)
    there = part < count
    place = row * count + part
    best = tl.load(parts[0] + place, mask=there, other=float("-inf"))
    ids = tl.load(parts[1] + place, mask=there, other=0x7FFFFFFF)
    chosen = tl.min(tl.where(best == tl.max(best, 0), ids, 0x7FFFFFFF), 0)
    tl.store(token + row, chosen)
    tl.store(sound + row, tl.min(tl.load(parts[4] + place, mask=there, other=1), 0))
    if tl.load(ints + slot * INTS + LOGPROBS) != 0:
        largest = tl.load(parts[2] + place, mask=there, other=float("-inf"))
        total = tl.load(parts[3] + place, mask=there, other=0.0)
        overall = tl.max(largest, 0)
        norm = overall + tl.log(tl.sum(total * tl.exp(largest - overall), 0))
        raw = tl.load(logits + row.to(tl.int64) * row_stride + chosen).to(tl.float32)
        tl.store(logprob + row, raw - norm)


def sample_coupled(
    logits: Tensor, options: SamplingOptions, rows: StepRows, out: Choices, filters: bool = True
) -> Choices:
    """Choose the token after every row; padding rows write nothing.

    Args:
        filters: False spares the look for them, where no slot has top-k, top-p or min-p.

    Raises:
        ValueError: shapes do not belong together.
    """
    check_scores(logits, options, rows)
    count, vocab = len(rows.slot), options.seen.shape[1]
    parts = triton.cdiv(vocab, SPLIT)
    if out.best.shape != (count, parts):
        raise ValueError(f"out must be made for {count} rows and {vocab} tokens")
    if filters:
        sample_threshold(logits, options, rows, out.candidates, out.threshold)
    workspace = (out.best, out.best_id, out.largest, out.total, out.finite)
    _best_of_part[(count, parts)](
        logits,
        logits.stride(0),
        rows.slot,
        *score_arguments(options, rows),
        out.threshold,
        workspace,
        vocab,
        FILTERS=filters,
        SPLIT=SPLIT,
        BLOCK=BLOCK,
        MAX_BIASES=options.biases.shape[1],
        MAX_ENDS=options.end_ids.shape[1],
        num_warps=_WARPS,
        enable_fp_fusion=False,
    )
    _best_of_row[(count,)](
        logits,
        logits.stride(0),
        rows.slot,
        options.ints,
        workspace,
        out.token,
        out.sound,
        out.logprob,
        parts,
        PARTS=triton.next_power_of_2(parts),
        num_warps=1,
    )
    return out


def sample_coupled_reference(
    logits: Tensor, row: int, options: SamplingOptions, rows: StepRows
) -> int:
    """The token of one row that is no padding."""
    slot = int(rows.slot[row])
    scores = adjusted_scores_reference(logits, row, options, rows)
    temperature = options.floats[slot, TEMPERATURE.value]
    if temperature > GREEDY_TEMPERATURE.value:
        low, high, choice = (
            int(options.ints[slot, c.value]) for c in (SEED_LOW, SEED_HIGH, CHOICE)
        )
        seed = low % _WORD + high % _WORD * _WORD
        key = noise_key_reference(seed, choice, int(rows.position[row]) + 1)
        hashes = noise_hash_reference(key, torch.arange(len(scores), device=scores.device))
        kept = scores >= sample_threshold_reference(logits, row, options, rows)
        noisy = temperature * gumbel_reference(hashes) + scores
        scores = torch.where(kept, noisy, -torch.inf)
    return int(scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax())
