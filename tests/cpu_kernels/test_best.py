"""The best few of a row, and their shares of its softmax."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.best import Best

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("columns", [3, 8, 29, 1000])
@pytest.mark.parametrize("levels", [4, 10**6], ids=["many-equal", "few-equal"])
def test_the_best_come_first_and_of_equal_ones_the_lowest(columns: int, levels: int) -> None:
    random = torch.Generator().manual_seed(columns)
    numbers = torch.randint(levels, (20, columns + 5), generator=random) / levels * 9
    scores = numbers[:, :columns]  # what is behind a row is not its own
    numbers[:, columns:] = INF
    places, shares = Best(3)(scores)
    expected = scores.sort(dim=-1, descending=True, stable=True).indices[:, :3]
    assert places.tolist() == expected.tolist()
    exact = scores.double().softmax(-1).gather(-1, expected)
    torch.testing.assert_close(torch.from_numpy(shares).double(), exact, atol=0, rtol=2e-6)


def test_what_is_no_score_has_no_share() -> None:
    scores = torch.full((4, 20), -INF)
    scores[0, 7] = 2.0
    scores[2, :] = torch.arange(20.0)
    scores[2, 9] = NAN
    scores[3, :] = NAN
    places, shares = Best(2)(scores)
    assert places.tolist()[0] == [7, 0] and shares.tolist()[0] == [1.0, 0.0]
    assert places.tolist()[2] == [19, 18]
    assert not (shares[1:] > 0.0).any()
