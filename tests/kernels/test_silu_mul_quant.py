from __future__ import annotations

import pytest
import torch
from support.codes import dequantised, same_bytes, within_e4m3

from kernels.silu_mul_quant import silu_mul_quant, silu_mul_reference


def _gate_up(rows: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + width)
    return (2 * torch.randn(rows, 2 * width, generator=generator)).bfloat16()


@pytest.mark.parametrize(
    ("rows", "width"), [(3, 1536), (1, 33), (2, 128), (0, 16)], ids=["1536", "33", "128", "no rows"]
)
def test_products_are_the_references(device: torch.device, rows: int, width: int):
    gate_up = _gate_up(rows, width).to(device)
    exact = silu_mul_reference(gate_up)
    codes, scales = silu_mul_quant(gate_up)
    torch.testing.assert_close(scales, exact.abs().amax(dim=1) / 448, rtol=2**-18, atol=0)
    assert within_e4m3(dequantised(codes, scales), exact, scales)


def test_a_row_does_not_depend_on_the_others(device: torch.device):
    gate_up = _gate_up(17, 100).to(device)
    together = silu_mul_quant(gate_up)
    for row in (0, 7, 16):
        one = slice(row, row + 1)
        alone = silu_mul_quant(gate_up[one])
        assert all(same_bytes(a, b[one]) for a, b in zip(alone, together, strict=True))


def test_zero_rows_stay_zero_and_broken_rows_stay_alone(device: torch.device):
    gate_up = _gate_up(6, 64)
    whole = silu_mul_quant(gate_up.to(device))
    gate_up[1] = 0
    gate_up[2, 100] = float("nan")
    gate_up[3, 5] = float("-inf")
    gate_up[4, :64] = -1e4  # far below, SiLU is an exact zero
    codes, scales = silu_mul_quant(gate_up.to(device))
    back = dequantised(codes, scales)
    assert (back[1] == 0).all() and (back[4] == 0).all()
    assert scales.isnan().tolist() == [False, False, True, True, False, False]
    assert back[2:4].isnan().all()
    for row in (0, 5):
        assert same_bytes(codes[row], whole[0][row])


def test_the_padding_is_zero(device: torch.device):
    gate_up = _gate_up(2, 33).to(device)
    codes = torch.full((2, 48), 3.0, device=device).to(torch.float8_e4m3fn)
    silu_mul_quant(gate_up, codes=codes)
    assert same_bytes(codes[:, :33], silu_mul_quant(gate_up)[0])
    assert (codes[:, 33:].float() == 0).all()


def test_what_does_not_fit_is_named():
    gate_up = _gate_up(2, 32)
    with pytest.raises(ValueError, match="even number of columns"):
        silu_mul_quant(gate_up[:, :63].contiguous())
    with pytest.raises(ValueError, match="gate_up must be"):
        silu_mul_quant(gate_up.float())
    with pytest.raises(ValueError, match="scales must be"):
        silu_mul_quant(gate_up, scales=torch.zeros(3))
