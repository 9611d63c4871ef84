"""FP8 products of many tokens."""

from __future__ import annotations

import pytest
import torch

from kernels.e4m3 import quantize_rows_reference
from kernels.fp8_gemm_skinny import fp8_gemm_reference
from kernels.fp8_gemm_tall import fp8_gemm_tall
from kernels.skinny_arguments import Extras


def _operand(rows: int, columns: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return quantize_rows_reference(torch.randn(rows, columns, generator=draw))


@pytest.mark.parametrize(
    ("rows", "n", "k"), [(130, 300, 144), (5, 40, 16)], ids=["tiles of each side", "a part of one"]
)
@pytest.mark.parametrize("more", [False, True], ids=["", "with a bias and a residual"])
def test_sums_are_those_of_the_reference(
    device: torch.device, rows: int, n: int, k: int, more: bool
) -> None:
    (x, x_scale), (w, w_scale) = _operand(rows, k, 1), _operand(n, k, 2)
    bias = torch.linspace(-3, 3, n) if more else None
    residual = torch.linspace(-9, 9, rows * n).view(rows, n).bfloat16() if more else None
    exact = fp8_gemm_reference(x, x_scale, w, w_scale, bias=bias, residual=residual)
    given = [None if t is None else t.to(device) for t in (w_scale, x_scale, bias, residual)]
    found = fp8_gemm_tall(x.to(device), w.to(device), Extras(*given)).cpu()
    bound = (k * 2**-18 + 2**-8) * exact.abs().amax()
    assert found.shape == (rows, n) and (found.double() - exact).abs().max() <= bound


def test_a_row_is_the_same_in_any_launch(device: torch.device) -> None:
    """On a GPU tiles have other widths, too."""
    k, n = (4096, 8192) if device.type == "cuda" else (144, 40)
    (x, x_scale), (w, w_scale) = _operand(300, k, 3), _operand(n, k, 4)
    x, w, w_scale = x.to(device), w.to(device), w_scale.to(device)
    x_scale = x_scale.to(device)
    together = fp8_gemm_tall(x, w, Extras(w_scale, x_scale))
    for first, end in ((0, 129), (130, 140), (160, 290)):
        alone = fp8_gemm_tall(x[first:end].contiguous(), w, Extras(w_scale, x_scale[first:end]))
        assert torch.equal(alone, together[first:end])


def test_odd_columns_are_refused() -> None:
    x = torch.zeros(1, 24, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="K must be a multiple of 16, not 24"):
        fp8_gemm_tall(x, x, Extras(torch.ones(1), torch.ones(1)))
