"""The three best ids of every row, under the row's own noise, and their share of the softmax.

``score[n] = logit[n] + T * G(key, id[n])``, G as in `kernels.noise`; a row with T = 0 has no noise.
``share[n] = exp(score[n]) / sum_m exp(score[m])``. One program per row reads the logits once: every
lane keeps its own three best and its own sum. Of equal scores in one lane the first is better.

A row whose scores are all NaN or -inf has shares that are not above 0. Moves 2 bytes per logit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import check_tensor
from kernels.noise import gumbel, gumbel_reference, noise_hash, noise_hash_reference
from kernels.slot_rows import check_column

BEST = tl.constexpr(3)
_MOST_LANES = 4096
_PER_THREAD = 8


def best_guesses(logits: Tensor, ids: Tensor, key: Tensor, heat: Tensor) -> Tensor:
    """float32 [rows, 2, 3]: ids, best first, then shares; ids are below 2^24.

    Args:
        logits: bfloat16 [rows, at least columns], adjacent columns.
        ids: int64 [columns], what the columns are of.
        key: int64 [rows], of the noise, below 2^32.
        heat: float64 [rows], as far apart as keys: temperatures.

    Raises:
        ValueError: a tensor has another shape or dtype.
    """
    rows, columns = len(logits), len(ids)
    fits = logits.dim() == 2 and logits.stride(1) == 1 and logits.shape[1] >= columns
    if not fits or logits.dtype != torch.bfloat16:
        found = f"{logits.dtype} {list(logits.shape)}"
        raise ValueError(f"logits must be torch.bfloat16 [rows, {columns} or more], not {found}")
    check_tensor("ids", ids, (columns,), torch.int64)
    stride = key.stride(0)
    check_column("key", key, rows, stride, torch.int64)
    check_column("heat", heat, rows, stride, torch.float64)
    best = torch.empty((rows, 2, BEST.value), dtype=torch.float32, device=logits.device)
    lanes = min(triton.next_power_of_2(columns), _MOST_LANES)
    _best_guesses[(rows,)](
        logits,
        ids,
        key,
        heat,
        best,
        columns,
        stride,
        logits.stride(0),
        LANES=lanes,
        num_warps=max(lanes // (32 * _PER_THREAD), 1),
    )
    return best


@triton.jit
def _best_guesses(logits, ids, key, heat, best, columns, stride, logit_stride, LANES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    word = tl.load(key + row * stride).to(tl.uint32)
    warmth = tl.load(heat + row * stride).to(tl.float32)
    lane = tl.arange(0, LANES)
    first = tl.full([LANES], float("-inf"), tl.float32)
    second, third = first, first
    first_at = tl.zeros([LANES], tl.int32)
    second_at, third_at = first_at, first_at
    total = tl.zeros([LANES], tl.float32)
    for start in range(0, columns, LANES):
        at = start + lane
        inside = at < columns
        logit = tl.load(logits + row * logit_stride + at, mask=inside, other=float("-inf"))
        score = logit.to(tl.float32)
        if warmth > 0:
            token = tl.load(ids + at, mask=inside, other=0).to(tl.int32)
            score += warmth * gumbel(noise_hash(word, token))
        base = tl.maximum(first, score)
        base = tl.where(base == float("-inf"), 0.0, base)  # of a lane that has nothing yet
        total = total * tl.exp(first - base) + tl.exp(score - base)
        beats_first, beats_second = score > first, score > second
        beats_third = score > third
        third_at = tl.where(beats_second, second_at, tl.where(beats_third, at, third_at))
        third = tl.where(beats_second, second, tl.where(beats_third, score, third))
        second_at = tl.where(beats_first, first_at, tl.where(beats_second, at, second_at))
        second = tl.where(beats_first, first, tl.where(beats_second, score, second))
        first_at = tl.where(beats_first, at, first_at)
        first = tl.where(beats_first, score, first)
    highest = tl.max(first, 0)
    whole = tl.sum(total * tl.exp(first - highest), 0)
    best += row * (2 * BEST)
    for rank in tl.static_range(BEST):
        score, winner = tl.max(first, 0, return_indices=True)
        mine = lane == winner
        place = tl.sum(tl.where(mine, first_at, 0), 0)
        tl.store(best + rank, tl.load(ids + place).to(tl.float32))
        tl.store(best + BEST + rank, tl.exp(score - highest) / whole)
        first, first_at = tl.where(mine, second, first), tl.where(mine, second_at, first_at)
        second, second_at = tl.where(mine, third, second), tl.where(mine, third_at, second_at)
        third = tl.where(mine, float("-inf"), third)


def best_guesses_reference(logits: Tensor, ids: Tensor, key: Tensor, heat: Tensor) -> Tensor:
    """`best_guesses` in torch, with as many guesses as there are columns, if fewer."""
    scores = logits[:, : len(ids)].float()
    for row in range(len(scores)):
        if heat[row] > 0:
            noise = gumbel_reference(noise_hash_reference(int(key[row]), ids))
            scores[row] += float(heat[row]) * noise
    places = torch.topk(scores, min(BEST.value, len(ids))).indices
    shares = torch.softmax(scores, dim=-1).gather(-1, places)
    return torch.stack((ids[places].float(), shares), dim=1)
