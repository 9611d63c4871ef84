"""How often a draft is right, and what that is worth, on answers it was never trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draft_service.training.batches import Batch, Windows, to_device
from draft_service.training.objective import pieces
from draft_service.training.pair import Pair
from foredraft.engine.noise import gumbel

_BEST = 4
_CHAINS = (5, 7)
_NOISY_ROWS = 2048  # spread over all: noise of a position is as long as the vocabulary
_NOISE_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares are of answer positions.

    top1, top2, top4: the target's greedy token is among the draft's so many best.
    chain5, chain7: tokens per step where the draft guesses so many tokens one after another.
    coupled1, coupled2: at temperature 1, the target's token is among the draft's so many best
        candidates, both chosen with the noise that the product uses.
    """

    top1: float
    top2: float
    top4: float
    chain5: float
    chain7: float
    coupled1: float
    coupled2: float


class Examination:
    """Compares both models after every prefix of the answers, one answer in a window.

    What the target says and the noise are found once: only the draft changes from one measurement
    to the next.
    """

    @torch.no_grad()
    def __init__(self, pair: Pair, ids: Tensor, windows: Windows, batch: int) -> None:
        """
        Args:
            ids: int64 [n], those that the draft can guess, ascending.
            batch: windows that are run at once.
        """
        self._pair = pair
        self._ids = ids
        # Logits in float32: in bfloat16 several are often equally good, and the lowest id wins.
        head = pair.head.float()
        self._guessing = head[ids]
        self._lengths = windows.answered.sum(axis=1).tolist()
        every = max(1, sum(self._lengths) // _NOISY_ROWS)
        self._parts: list[_Part] = []
        seen = 0
        for rows in _slices(len(windows), batch):
            given = to_device(windows, rows, pair.device)
            target = pair.target_rows(given).float()
            noisy = torch.arange(min(-seen % every, len(target)), len(target), every)
            at = given.answered.cpu()[noisy]
            seeds = (at // windows.tokens.shape[1] + rows.start).tolist()
            places = (given.positions.flatten().cpu()[at] + 1).tolist()
            keys = list(zip(seeds, places, strict=True))
            noisy = noisy.to(pair.device)
            coupled = _coupled(head, target[noisy], ids, keys)
            self._parts.append(_Part(given, _best(head, target), noisy, *coupled))
            seen += len(target)

    @torch.no_grad()
    def agreement(self) -> Agreement:
        """Of the draft as it is now."""
        found = [self._compare(part) for part in self._parts]
        best, coupled = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
        shares = best.double().mean(dim=0).tolist()
        runs = [run.tolist() for run in best[:, 0].split(self._lengths)]
        chains = [len(best) / sum(walk(run, depth) for run in runs) for depth in _CHAINS]
        noisy_shares = coupled.double().mean(dim=0).tolist()
        return Agreement(shares[0], shares[1], shares[3], *chains, *noisy_shares)

    def _compare(self, part: _Part) -> tuple[Tensor, Tensor]:
        """Whether the target's id is among the draft's 1, 2, … best: bool [rows, 4], and with
        noise [noisy rows, 2]."""
        draft = self._pair.draft_rows(part.given)
        hits = []
        for piece in pieces(len(draft), self._guessing):
            logits = functional.linear(draft[piece], self._guessing)
            hits.append(_among(part.wanted[piece], self._ids[logits.topk(_BEST, dim=-1).indices]))
        scores = functional.linear(draft[part.noisy], self._guessing).add_(part.noise)
        coupled = _among(part.coupled, self._ids[scores.topk(2, dim=-1).indices])
        return torch.cat(hits), coupled


@dataclass(frozen=True, slots=True)
class _Part:
    """Some windows, and the target's part in them.

    wanted: its best ids, int64 [rows]. noisy: which of the rows are compared at temperature 1, too.
    noise: of the ids that the draft can guess, float32 [noisy rows, ids]; coupled: the target's ids
    with it, int64 [noisy rows].
    """

    given: Batch
    wanted: Tensor
    noisy: Tensor
    noise: Tensor
    coupled: Tensor


def walk(right: Sequence[bool], depth: int) -> int:
    """Steps in which an answer is verified by chains of ``depth`` guesses.

    ``right`` tells of each position whether the guess there is the target's token. A step takes the
    guesses up to the first wrong one, and the target's own token behind them.
    """
    steps = place = 0
    while place < len(right):
        accepted = 0
        while accepted < depth and place + accepted < len(right) and right[place + accepted]:
            accepted += 1
        place += accepted + 1
        steps += 1
    return steps


def _best(head: Tensor, target: Tensor) -> Tensor:
    """The target's greedy ids, int64 [rows]."""
    found = [
        functional.linear(target[piece], head).argmax(dim=-1) for piece in pieces(len(target), head)
    ]
    return torch.cat(found)


def _coupled(
    head: Tensor, target: Tensor, ids: Tensor, keys: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Noise of ``ids``, float32 [rows, n], and the target's ids at temperature 1, int64 [rows].

    ``keys`` are seed and position of each row, from which both models have their noise.
    """
    noise = torch.empty(len(keys), len(ids), device=head.device)
    best = torch.empty(len(keys), dtype=torch.int64, device=head.device)
    for piece in _slices(len(keys), _NOISE_AT_ONCE):
        whole = torch.stack(
            [gumbel(seed, 0, place, len(head), head.device) for seed, place in keys[piece]]
        )
        best[piece] = (functional.linear(target[piece], head) + whole).argmax(dim=-1)
        torch.index_select(whole, 1, ids, out=noise[piece])
    return noise, best


def _among(wanted: Tensor, candidates: Tensor) -> Tensor:
    """Whether ``wanted`` [rows] is among the first 1, 2, … of ``candidates`` [rows, k]."""
    return (candidates == wanted[:, None]).cumsum(dim=-1) > 0


def _slices(count: int, size: int) -> Iterator[slice]:
    for first in range(0, count, size):
        yield slice(first, first + size)
