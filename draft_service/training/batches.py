"""Answers packed into windows of one length, and the windows that a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_service.training.answers import Answers


@dataclass(frozen=True, slots=True)
class Windows:
    """Several prompts with their answers in each window; all are [windows, length].

    tokens: ids, 0 behind the last one. positions: within the prompt and its answer.
    places: 1, 2, … for what belongs together, 0 behind the last token.
    answered: true where the next token is one of an answer: where the draft has to guess.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int16]
    places: NDArray[np.int16]
    answered: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """Windows on the device that computes.

    tokens, positions: int64 [windows, length]; places: int16, as `Windows` has them.
    runs: int32, where what belongs together begins in the flattened windows, and their end.
    answered: int64, places of the answered rows in the flattened windows.
    """

    tokens: Tensor
    positions: Tensor
    places: Tensor
    runs: Tensor
    answered: Tensor

    def visible(self) -> Tensor:
        """Each token sees what came before it in its own answer: bool [windows, length, length]."""
        length = self.places.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.places.device).tril_()
        return (self.places[:, :, None] == self.places[:, None, :]) & causal


def pack(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Numbers of the items in each window: longest first, each where least room is left over."""
    by_room: list[list[int]] = [[] for _ in range(room + 1)]
    windows: list[list[int]] = []
    for item in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        length = lengths[item]
        left = next((left for left in range(length, room + 1) if by_room[left]), None)
        if left is None:
            left = room
            by_room[room].append(len(windows))
            windows.append([])
        window = by_room[left].pop()
        windows[window].append(item)
        by_room[left - length].append(window)
    return windows


def lay_out_windows(
    answers: Answers, length: int, packed: Sequence[Sequence[int]] | None = None
) -> Windows:
    """``packed`` are the numbers of the answers in each window; None: as `pack` has them."""
    if packed is None:
        packed = pack(answers.lengths.tolist(), length)
    shape = (len(packed), length)
    windows = Windows(
        tokens=np.zeros(shape, dtype=np.int32),
        positions=np.zeros(shape, dtype=np.int16),
        places=np.zeros(shape, dtype=np.int16),
        answered=np.zeros(shape, dtype=np.bool_),
    )
    ends = np.cumsum(answers.lengths)
    for row, items in enumerate(packed):
        first = 0
        for place, item in enumerate(items, start=1):
            count = int(answers.lengths[item])
            last = first + count
            windows.tokens[row, first:last] = answers.tokens[ends[item] - count : ends[item]]
            windows.positions[row, first:last] = np.arange(count)
            windows.places[row, first:last] = place
            windows.answered[row, first + int(answers.prompt_lengths[item]) - 1 : last - 1] = True
            first = last
    return windows


def rows_of(step: int, batch: int, windows: int, seed: int) -> NDArray[np.int64]:
    """The windows that step ``step`` takes: every window once before any comes again.

    A function of the numbers alone, so that a run that is resumed needs to know no more than its
    step.
    """
    numbers = range(step * batch, (step + 1) * batch)
    chosen = [_order(seed, number // windows, windows)[number % windows] for number in numbers]
    return np.array(chosen, dtype=np.int64)


def moved(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """A copy on ``device``, which nobody waits for."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":  # of other memory a copy waits for all that the device has to do
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_device(windows: Windows, rows: NDArray[np.int64] | slice, device: torch.device) -> Batch:
    """The windows of ``rows``."""
    places = windows.places[rows]
    return Batch(
        tokens=moved(windows.tokens[rows], device).long(),
        positions=moved(windows.positions[rows], device).long(),
        places=moved(places, device),
        runs=moved(_runs(places), device),
        answered=moved(np.flatnonzero(windows.answered[rows]), device),
    )


def _runs(places: NDArray[np.int16]) -> NDArray[np.int32]:
    """The first token of each run of equal places, [runs + 1]; what follows the last one is one."""
    begins = np.ones(places.shape, dtype=np.bool_)
    np.not_equal(places[:, 1:], places[:, :-1], out=begins[:, 1:])
    return np.append(np.flatnonzero(begins), places.size).astype(np.int32)


@lru_cache(maxsize=2)
def _order(seed: int, round_number: int, windows: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, round_number)).permutation(windows)
