from __future__ import annotations

import pytest
import torch
from support.codes import dequantised, same_bytes, within_e4m3

from kernels.rmsnorm_residual_quant import (
    rmsnorm_residual,
    rmsnorm_residual_quant,
    rmsnorm_residual_reference,
)

_EPS = 1e-5


def _rows(rows: int, width: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator).bfloat16()


def _gamma(width: int) -> torch.Tensor:
    return 1 + 0.2 * torch.randn(width, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("rows", "width", "with_residual"),
    [(3, 576, True), (1, 33, True), (2, 1024, False), (0, 64, True)],
    ids=["576", "33", "without residual", "no rows"],
)
def test_norms_are_the_references(device: torch.device, rows: int, width: int, with_residual: bool):
    x, gamma = _rows(rows, width).to(device), _gamma(width).to(device)
    residual = _rows(rows, width, seed=3).to(device) if with_residual else None
    exact, kept = rmsnorm_residual_reference(x, gamma, _EPS, residual)

    codes, scales, new_residual = rmsnorm_residual_quant(x, gamma, _EPS, residual=residual)
    assert same_bytes(new_residual, kept)
    torch.testing.assert_close(scales, exact.abs().amax(dim=1) / 448, rtol=2**-20, atol=0)
    assert within_e4m3(dequantised(codes, scales), exact, scales)

    plain, new_residual = rmsnorm_residual(x, gamma, _EPS, residual=residual)
    assert same_bytes(new_residual, kept)
    torch.testing.assert_close(plain.float(), exact, rtol=2**-8, atol=0)


def test_a_row_does_not_depend_on_the_others(device: torch.device):
    x, gamma = _rows(17, 200).to(device), _gamma(200).bfloat16().to(device)
    residual = _rows(17, 200, seed=4).to(device)
    together = rmsnorm_residual_quant(x, gamma, _EPS, residual=residual)
    for row in (0, 7, 16):
        one = slice(row, row + 1)
        alone = rmsnorm_residual_quant(x[one], gamma, _EPS, residual=residual[one])
        assert all(same_bytes(a, b[one]) for a, b in zip(alone, together, strict=True))


def test_the_residual_is_kept_in_place_and_the_padding_is_zero(device: torch.device):
    x, gamma = _rows(2, 33).to(device), _gamma(33).to(device)
    residual = _rows(2, 33, seed=5).to(device)
    expected = rmsnorm_residual_quant(x, gamma, _EPS, residual=residual.clone())
    codes = torch.full((2, 48), 3.0, device=device).to(torch.float8_e4m3fn)
    outcome = rmsnorm_residual_quant(
        x, gamma, _EPS, residual=residual, codes=codes, new_residual=residual
    )
    assert outcome[0] is codes and outcome[2] is residual
    assert same_bytes(codes[:, :33], expected[0])
    assert (codes[:, 33:].float() == 0).all()
    assert same_bytes(residual, expected[2])


def test_zero_rows_stay_zero_and_broken_rows_stay_alone(device: torch.device):
    x = _rows(5, 64)
    whole = x.clone().to(device)
    x[1] = 0
    x[2, 5] = float("nan")
    x[3, 63] = float("inf")
    gamma = _gamma(64).to(device)
    codes, scales, _ = rmsnorm_residual_quant(x.to(device), gamma, _EPS)
    untouched = rmsnorm_residual_quant(whole, gamma, _EPS)
    back = dequantised(codes, scales)
    assert (back[1] == 0).all()
    assert scales.isnan().tolist() == [False, False, True, True, False]
    assert back[2:4].isnan().all()
    for row in (0, 4):
        assert same_bytes(codes[row], untouched[0][row])


def test_what_does_not_fit_is_named():
    x, gamma = _rows(2, 32), _gamma(32)
    with pytest.raises(ValueError, match="gamma must be"):
        rmsnorm_residual_quant(x, gamma[:16], _EPS)
    with pytest.raises(ValueError, match="residual must be"):
        rmsnorm_residual_quant(x, gamma, _EPS, residual=x[:1])
    with pytest.raises(ValueError, match="x must be"):
        rmsnorm_residual(x.float(), gamma, _EPS)
    with pytest.raises(ValueError, match="codes must be"):
        rmsnorm_residual_quant(x, gamma, _EPS, codes=x[:, :16].to(torch.float8_e4m3fn))
