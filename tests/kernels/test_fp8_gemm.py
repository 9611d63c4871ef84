"""FP8 products of any size, from weights and tokens as they come."""

from __future__ import annotations

import pytest
import torch

from kernels.fp8_gemm import fp8_gemm
from kernels.quantize_weight import padded, quantize_weight_reference
from kernels.silu_mul_quant import silu_mul_quant


def _matrix(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1009 + columns)
    return torch.randn(rows, columns, generator=generator)


def _quantised_tokens(x: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Through a kernel that quantises: SiLU of a gate of 100 is 100, exactly."""
    gate_up = torch.cat([torch.full_like(x, 100), x / 100], dim=1).bfloat16()
    codes = torch.empty(len(x), width, dtype=torch.float8_e4m3fn, device=x.device)
    return silu_mul_quant(gate_up, codes=codes)


def _padded_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.zeros(padded(weight.shape[0]), padded(weight.shape[1]), device=weight.device)
    whole[: weight.shape[0], : weight.shape[1]] = weight
    return quantize_weight_reference(whole)


def _relative_error(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Per row, as lengths."""
    return (result.double() - exact).norm(dim=1) / exact.norm(dim=1)


@pytest.mark.parametrize(
    ("inner", "outer"), [(32, 15), (768, 2), (577, 33)], ids=["32-15", "768-2", "577-33"]
)
@pytest.mark.parametrize("rows", [0, 1, 17])
def test_shapes_that_a_library_refuses(device: torch.device, inner: int, outer: int, rows: int):
    x, weight = _matrix(rows, inner).to(device), _matrix(outer, inner).to(device)
    codes, x_scale = _quantised_tokens(x, padded(inner))
    w_codes, w_scale = _padded_weight(weight)
    result = fp8_gemm(codes, x_scale, w_codes, w_scale, columns=outer)
    assert result.shape == (rows, outer)
    exact = x.double() @ weight.double().T
    # Few columns may cancel: compare with what random terms of this size add up to. Rounding both
    # sides is worth 0.037 of that on average.
    size = inner**0.5 * outer**0.5
    assert ((result.double() - exact).norm(dim=1) <= 0.15 * size).all()


def test_one_outlier_does_not_flatten_the_other_rows(device: torch.device):
    x, weight = _matrix(16, 256), _matrix(128, 256).to(device)
    x[9, 100] = 6.6e4
    x = x.to(device)
    codes, x_scale = _quantised_tokens(x, 256)
    result = fp8_gemm(codes, x_scale, *quantize_weight_reference(weight))
    others = torch.arange(16, device=device) != 9
    exact = x.double() @ weight.double().T
    assert (_relative_error(result, exact)[others] <= 0.05).all()
    assert ((codes.float() != 0) | (x.abs() < 2**-9))[others].all()


def test_the_output_may_be_given(device: torch.device):
    codes, scale = quantize_weight_reference(_matrix(16, 32).to(device))
    out = torch.full((16, 16), torch.nan, dtype=torch.bfloat16, device=device)
    result = fp8_gemm(codes, scale, codes, scale, columns=10, out=out)
    assert result.data_ptr() == out.data_ptr() and result.shape == (16, 10)
    assert torch.equal(result, fp8_gemm(codes, scale, codes, scale)[:, :10])
    with pytest.raises(ValueError, match="x_scale must be"):
        fp8_gemm(codes, scale[:3], codes, scale)


def test_columns_beyond_the_weight_are_refused():
    x = torch.zeros(1, 16, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="columns must be from 1 to 16"):
        fp8_gemm(x, torch.ones(1), x.expand(16, 16).contiguous(), torch.ones(16), columns=17)
