from __future__ import annotations

import pytest
import torch
from support.codes import dequantised, same_bytes, within_e4m3

from kernels.e4m3 import quantize_rows_reference
from kernels.quantize_rows import quantize_rows


def _rows(rows: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + width)
    return (3 * torch.randn(rows, width, generator=generator)).bfloat16()


@pytest.mark.parametrize(
    ("rows", "width"), [(3, 1536), (1, 33), (2, 128), (0, 16)], ids=["1536", "33", "128", "no rows"]
)
def test_values_are_within_half_a_step(device: torch.device, rows: int, width: int):
    x = _rows(rows, width).to(device)
    codes, scales = quantize_rows(x)
    torch.testing.assert_close(scales, quantize_rows_reference(x)[1], rtol=2**-22, atol=0)
    assert within_e4m3(dequantised(codes, scales), x.float(), scales)


def test_a_row_does_not_depend_on_the_others(device: torch.device):
    x = _rows(17, 100).to(device)
    together = quantize_rows(x)
    for row in (0, 7, 16):
        one = slice(row, row + 1)
        alone = quantize_rows(x[one])
        assert all(same_bytes(a, b[one]) for a, b in zip(alone, together, strict=True))


def test_zero_rows_stay_zero_and_broken_rows_stay_alone(device: torch.device):
    x = _rows(4, 64)
    whole = quantize_rows(x.to(device))
    x[1] = 0
    x[2, 5] = float("nan")
    codes, scales = quantize_rows(x.to(device))
    assert (codes[1].float() == 0).all()
    assert scales.isnan().tolist() == [False, False, True, False]
    assert codes[2].float().isnan().all()
    for row in (0, 3):
        assert same_bytes(codes[row], whole[0][row])


def test_the_padding_is_zero(device: torch.device):
    x = _rows(2, 33).to(device)
    codes = torch.full((2, 48), 3.0, device=device).to(torch.float8_e4m3fn)
    quantize_rows(x, codes=codes)
    assert same_bytes(codes[:, :33], quantize_rows(x)[0])
    assert (codes[:, 33:].float() == 0).all()


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="x must be"):
        quantize_rows(_rows(2, 32).float())
