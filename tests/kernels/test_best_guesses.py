from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.best_guesses import best_guesses, best_guesses_reference


def columns(device: torch.device, heats: list[float]) -> tuple[Tensor, Tensor]:
    """Keys and temperatures of rows, as columns of one table."""
    table = torch.zeros(len(heats), 5, dtype=torch.int64, device=device)
    table[:, 1] = torch.arange(len(heats)) * 0x9E3779B1 % 2**32
    table.view(torch.float64)[:, 3] = torch.tensor(heats, dtype=torch.float64)
    return table[:, 1], table.view(torch.float64)[:, 3]


def logits_of(device: torch.device, rows: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(width)
    return (3 * torch.randn(rows, width, generator=generator)).bfloat16().to(device)


@pytest.mark.parametrize("width", [9000, 4096, 100, 3], ids=str)
def test_guesses_are_the_references(device: torch.device, width: int):
    """Without noise and with it; behind the ids, columns that nobody can guess."""
    logits = logits_of(device, 5, width + 7)
    logits[:, width:] = 100
    # bfloat16 has equal logits; which of them is better is not told.
    logits[:, :width] += torch.linspace(0, 1e-3, width, device=device)
    ids = 3 * torch.arange(width, device=device) + 1
    key, heat = columns(device, [0.0, 0.7, 0.0, 1.0, 2.5])
    ours = best_guesses(logits, ids, key, heat)
    exact = best_guesses_reference(logits, ids, key, heat)
    torch.testing.assert_close(ours[:, 1], exact[:, 1], atol=1e-6, rtol=1e-4)
    noisy = [1, 3, 4]
    assert ours[noisy, 0].equal(exact[noisy, 0])
    for row in (0, 2):
        places = (ours[row, 0].long() - 1) // 3
        assert len(set(places.tolist())) == 3
        assert logits[row, places].equal(logits[row, :width].topk(3).values)


def test_fewer_columns_than_guesses(device: torch.device):
    logits, ids = logits_of(device, 2, 2), torch.tensor([7, 11], device=device)
    key, heat = columns(device, [0.0, 1.0])
    ours = best_guesses(logits, ids, key, heat)
    exact = best_guesses_reference(logits, ids, key, heat)
    torch.testing.assert_close(ours[..., :2], exact)
    assert (ours[:, 1, 2] == 0).all() and torch.isin(ours[:, 0], ids).all()


def test_a_broken_row_has_no_guess_and_is_alone(device: torch.device):
    logits, ids = logits_of(device, 4, 50), torch.arange(50, device=device)
    key, heat = columns(device, [0.0] * 4)
    whole = best_guesses(logits, ids, key, heat)
    logits[1], logits[2] = torch.nan, -torch.inf
    ours = best_guesses(logits, ids, key, heat)
    assert not (ours[1:3, 1] > 0).any() and torch.isin(ours[1:3, 0], ids).all()
    assert ours[[0, 3]].equal(whole[[0, 3]])


def test_what_does_not_fit_is_refused(device: torch.device):
    logits, ids = logits_of(device, 2, 50), torch.arange(51, device=device)
    key, heat = columns(device, [0.0] * 2)
    with pytest.raises(ValueError, match=r"logits must be torch.bfloat16 \[rows, 51 or more\]"):
        best_guesses(logits, ids, key, heat)
    with pytest.raises(ValueError, match="heat must be"):
        best_guesses(logits, ids[:50], key, heat.contiguous().float())
