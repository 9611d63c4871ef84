"""The three skinny products: what they compute, and that a row has the same bits in any company."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from support.codes import same_bytes

from kernels.bf16_gemm_skinny import bf16_gemm_reference, bf16_gemm_skinny
from kernels.e4m3 import quantize_rows_reference
from kernels.fp8_gemm_skinny import fp8_gemm_reference, fp8_gemm_skinny
from kernels.quantize_weight import quantize_weight_reference
from kernels.silu_mul_quant import silu_mul_reference
from kernels.skinny_gemm import workspace_for
from kernels.skinny_table import BF16, FP8, W8A16, Launch, Tiling
from kernels.w8a16_gemm_skinny import w8a16_gemm_reference, w8a16_gemm_skinny

_KINDS = (FP8, W8A16, BF16)
# Three slices of K, the last of them shorter.
_LAUNCH = Launch(block_n=64, warps=4, stages=3, ahead=64)
_TILING = Tiling(block_k=64, splits=3, few=_LAUNCH, many=replace(_LAUNCH, block_n=128, warps=8))


@dataclass(frozen=True, slots=True)
class Product:
    """A weight, and how tokens are multiplied with it."""

    kind: str
    weight: torch.Tensor
    scale: torch.Tensor

    def run(self, x: torch.Tensor, tiling: Tiling = _TILING, **extras) -> torch.Tensor:
        if self.kind == BF16:
            return bf16_gemm_skinny(x, self.weight, tiling=tiling, **extras)
        if self.kind == W8A16:
            return w8a16_gemm_skinny(x, self.weight, self.scale, tiling=tiling, **extras)
        codes, x_scale = quantize_rows_reference(x)
        return fp8_gemm_skinny(codes, x_scale, self.weight, self.scale, tiling=tiling, **extras)

    def exact(self, x: torch.Tensor, **extras) -> torch.Tensor:
        if self.kind == BF16:
            return bf16_gemm_reference(x, self.weight, **extras)
        if self.kind == W8A16:
            return w8a16_gemm_reference(x, self.weight, self.scale, **extras)
        codes, x_scale = quantize_rows_reference(x)
        return fp8_gemm_reference(codes, x_scale, self.weight, self.scale, **extras)

    def bound(self, x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """What the docstrings promise: of the terms' magnitudes, and one rounding to bfloat16."""
        of_sum = 2.0**-10 if self.kind == FP8 else x.shape[1] * 2.0**-24
        w = self.weight.double().abs()
        if self.kind != BF16:
            w = w * self.scale.double()[:, None]
        return of_sum * 1.1 * (x.double().abs() @ w.T) + result.abs() * 2.0**-8


def _product(kind: str, n: int, k: int, device: torch.device) -> Product:
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n + k)) * 0.05
    codes, scale = quantize_weight_reference(weight.to(device))
    return Product(kind, weight.to(device).bfloat16() if kind == BF16 else codes, scale)


def _tokens(rows: int, k: int, device: torch.device) -> torch.Tensor:
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows * k))
    return x.bfloat16().to(device)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    ("rows", "n", "k"),
    [(1, 15, 32), (17, 33, 577), (2, 130, 320), (33, 64, 64)],
    ids=["1x15x32", "17x33x577", "2x130x320", "33x64x64"],
)
def test_products_are_the_references(device: torch.device, kind: str, rows: int, n: int, k: int):
    product = _product(kind, n, k, device)
    x = _tokens(rows, k, device)
    exact = product.exact(x)
    error = (product.run(x).double() - exact).abs()
    assert (error <= product.bound(x, exact)).all()


@pytest.mark.parametrize("kind", _KINDS)
def test_bias_and_residual_are_added(device: torch.device, kind: str):
    product = _product(kind, 70, 160, device)
    x = _tokens(3, 160, device)
    bias = torch.linspace(-1, 1, 70, device=device)
    residual = _tokens(3, 70, device)
    exact = product.exact(x, bias=bias, residual=residual)
    result = product.run(x, bias=bias, residual=residual.clone())
    assert ((result.double() - exact).abs() <= product.bound(x, exact)).all()
    in_place = residual.clone()
    assert product.run(x, bias=bias, residual=in_place, out=in_place) is in_place
    assert same_bytes(in_place, result)


@pytest.mark.parametrize("kind", _KINDS)
def test_silu_and_product_may_stand_before(device: torch.device, kind: str):
    product = _product(kind, 40, 150, device)
    gate_up = _tokens(3, 300, device)
    if kind == FP8:
        weight, scale = product.weight, product.scale
        result = fp8_gemm_skinny(gate_up, None, weight, scale, silu_mul=True, tiling=_TILING)
    else:
        result = product.run(gate_up, silu_mul=True)
    x = silu_mul_reference(gate_up)
    weight = product.weight.double()
    exact = x.double() @ (weight if kind == BF16 else weight * product.scale.double()[:, None]).T
    error = (result.double() - exact).abs().amax(dim=1) / exact.abs().amax(dim=1)
    assert (error <= (0.05 if kind == FP8 else 0.01)).all()


@pytest.mark.parametrize("kind", _KINDS)
def test_a_row_has_the_same_bits_in_any_company(device: torch.device, kind: str):
    product = _product(kind, 70, 136, device)
    x = _tokens(81, 136, device)

    def sums(rows: torch.Tensor) -> torch.Tensor:
        """Not rounded to bfloat16, which would hide a difference."""
        return product.run(rows, out=torch.empty(len(rows), 70, device=device))

    alone = sums(x[5:6])
    for rows, place in [(2, 1), (17, 16), (33, 32), (81, 3), (81, 80)]:
        among = x[:rows].clone()
        among[place] = x[5]
        assert same_bytes(sums(among)[place : place + 1], alone)


@pytest.mark.parametrize("kind", _KINDS)
def test_loading_by_descriptor_changes_no_bit(device: torch.device, kind: str):
    product = _product(kind, 70, 208, device)
    x = _tokens(3, 208, device)
    by_pointer = replace(_TILING, few=replace(_LAUNCH, tma=False))
    assert same_bytes(product.run(x), product.run(x, tiling=by_pointer))


def test_a_broken_row_stays_alone(device: torch.device):
    product = _product(FP8, 33, 96, device)
    x = _tokens(4, 96, device)
    whole = product.run(x)
    x[1, 3] = float("nan")
    x[2, 95] = float("inf")
    result = product.run(x)
    assert result[1:3].isnan().all()
    assert same_bytes(result[0], whole[0]) and same_bytes(result[3], whole[3])


def test_a_zero_row_is_the_bias(device: torch.device):
    product = _product(FP8, 33, 96, device)
    x = _tokens(3, 96, device)
    x[1] = 0
    bias = torch.linspace(-2, 2, 33, device=device).bfloat16()
    assert same_bytes(product.run(x, bias=bias)[1], bias)


def test_no_rows_give_no_rows(device: torch.device):
    assert _product(BF16, 8, 16, device).run(_tokens(0, 16, device)).shape == (0, 8)


def test_a_workspace_serves_again_and_again(device: torch.device):
    product = _product(FP8, 70, 200, device)
    workspace = workspace_for(FP8, product.weight, 20, _TILING)
    for rows in (20, 3, 17):
        x = _tokens(rows, 200, device)
        assert same_bytes(product.run(x, workspace=workspace), product.run(x))
        assert not workspace.arrivals.any()


def test_what_does_not_fit_is_named(device: torch.device):
    product = _product(FP8, 33, 96, device)
    codes, scale = quantize_rows_reference(_tokens(2, 96, device))
    weight, weight_scale = product.weight, product.scale
    with pytest.raises(ValueError, match="x must be"):
        fp8_gemm_skinny(codes[:, :95], scale, weight, weight_scale)
    with pytest.raises(ValueError, match="x_scale must be"):
        fp8_gemm_skinny(codes, None, weight, weight_scale)
    with pytest.raises(ValueError, match="w_scale must be"):
        fp8_gemm_skinny(codes, scale, weight, weight_scale[1:])
    with pytest.raises(ValueError, match="weight must be"):
        bf16_gemm_skinny(_tokens(2, 96, device), weight)
    with pytest.raises(ValueError, match="residual must be"):
        fp8_gemm_skinny(codes, scale, weight, weight_scale, residual=_tokens(1, 33, device))
    with pytest.raises(ValueError, match="workspace must hold"):
        small = workspace_for(FP8, weight, 2, _TILING)
        many, many_scales = quantize_rows_reference(_tokens(17, 96, device))
        fp8_gemm_skinny(many, many_scales, weight, weight_scale, workspace=small, tiling=_TILING)
