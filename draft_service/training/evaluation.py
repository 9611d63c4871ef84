"""How often a draft is right, and what that is worth, on answers it was never trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draft_service.training.batches import Windows, to_device
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


@torch.no_grad()
def evaluate(pair: Pair, ids: Tensor, windows: Windows, batch: int) -> Agreement:
    """Compare both models after every prefix of the answers, one answer in a window.

    Args:
        ids: int64 [n], those that the draft can guess, ascending.
        batch: windows that are run at once.
    """
    total = int(windows.answered.sum())
    every = max(1, total // _NOISY_ROWS)
    # Logits in float32: in bfloat16 several are often equally good, and the lowest id would win.
    head = pair.head.float()
    guessing = head[ids]
    hits: list[Tensor] = []
    coupled: list[Tensor] = []
    seen = 0
    for rows in _slices(len(windows), batch):
        given = to_device(windows, rows, pair.device)
        target, draft = pair.target_rows(given).float(), pair.draft_rows(given)
        hits.append(_hits(head, target, guessing, draft, ids))
        first = min(-seen % every, len(target))
        noisy = torch.arange(first, len(target), every, device=pair.device)
        at = given.answered[noisy]
        seeds = (at // windows.tokens.shape[1] + rows.start).tolist()
        places = (given.positions.flatten()[at] + 1).tolist()
        keys = list(zip(seeds, places, strict=True))
        coupled.append(_coupled(head, target[noisy], guessing, draft[noisy], ids, keys))
        seen += len(target)
    best = torch.cat(hits).cpu()
    shares = best.double().mean(dim=0).tolist()
    noisy_shares = torch.cat(coupled).double().mean(dim=0).tolist()
    runs = best[:, 0].split(windows.answered.sum(axis=1).tolist())
    chains = [total / sum(walk(run.tolist(), depth) for run in runs) for depth in _CHAINS]
    return Agreement(shares[0], shares[1], shares[3], *chains, *noisy_shares)


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


def _hits(head: Tensor, target: Tensor, guessing: Tensor, draft: Tensor, ids: Tensor) -> Tensor:
    """Whether the target's best id is among the draft's 1, 2, 3, 4 best: bool [rows, 4]."""
    found = []
    for piece in pieces(len(target), len(head)):
        wanted = functional.linear(target[piece], head).argmax(dim=-1)
        logits = functional.linear(draft[piece], guessing)
        found.append(_among(wanted, ids[logits.topk(_BEST, dim=-1).indices]))
    return torch.cat(found)


def _coupled(
    head: Tensor,
    target: Tensor,
    guessing: Tensor,
    draft: Tensor,
    ids: Tensor,
    keys: Sequence[tuple[int, int]],
) -> Tensor:
    """Whether the target's token at temperature 1 is among the draft's 1, 2 best: bool [rows, 2].

    ``keys`` are seed and position of each row, from which both have their noise.
    """
    found = [torch.zeros(0, 2, dtype=torch.bool, device=head.device)]
    for piece in _slices(len(keys), _NOISE_AT_ONCE):
        noise = torch.stack(
            [gumbel(seed, 0, place, len(head), head.device) for seed, place in keys[piece]]
        )
        wanted = (functional.linear(target[piece], head) + noise).argmax(dim=-1)
        scores = functional.linear(draft[piece], guessing) + noise[:, ids]
        found.append(_among(wanted, ids[scores.topk(2, dim=-1).indices]))
    return torch.cat(found)


def _among(wanted: Tensor, candidates: Tensor) -> Tensor:
    """Whether ``wanted`` [rows] is among the first 1, 2, … of ``candidates`` [rows, k]."""
    return (candidates == wanted[:, None]).cumsum(dim=-1) > 0


def _slices(count: int, size: int) -> Iterator[slice]:
    for first in range(0, count, size):
        yield slice(first, first + size)
