"""Gates and ups with what stands behind them, and the product that takes such groups."""

from __future__ import annotations

import pytest
import torch
from support.codes import same_bytes

from kernels.e4m3 import quantize_groups_reference, quantize_rows_reference
from kernels.fp8_gate_up import fp8_gate_up, fp8_gate_up_reference
from kernels.fp8_gemm_skinny import fp8_gemm_reference, fp8_gemm_skinny
from kernels.quantize_weight import quantize_weight_reference
from kernels.skinny_table import Launch, Tiling

_LAUNCH = Launch(block_n=128, warps=8, stages=3, ahead=64)
_TILING = Tiling(64, 1, _LAUNCH, _LAUNCH)
_SPLIT = Tiling(128, 2, *[Launch(block_n=64, warps=4, stages=3)] * 2)


def _weight(n: int, k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(n + k)
    return quantize_weight_reference((torch.randn(n, k, generator=random) * 0.2).to(device))


def _tokens(rows: int, k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows * k))
    return quantize_rows_reference(x.bfloat16().to(device))


def _values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return codes.double() * scales.double().T.repeat_interleave(128, dim=1)[:, : codes.shape[1]]


@pytest.mark.parametrize(
    ("rows", "inner", "k"), [(1, 130, 96), (3, 128, 70), (17, 40, 64)], ids=str
)
def test_groups_are_the_references(device: torch.device, rows: int, inner: int, k: int):
    given = (*_tokens(rows, k, device), *_weight(2 * inner, k, device))
    found, wanted = fp8_gate_up(*given, tiling=_TILING), fp8_gate_up_reference(*given)
    # Sums in another order may round a gate or an up, and with it a code, elsewhere.
    exact = _values(*wanted)
    largest = wanted[1].double().T.repeat_interleave(128, dim=1)[:, :inner] * 448
    assert ((_values(*found) - exact).abs() <= exact.abs() * 2**-3 + largest * 2**-8).all()
    same = found[0].view(torch.uint8) == wanted[0].view(torch.uint8)
    assert same.double().mean() > 0.95
    assert torch.allclose(found[1], wanted[1], rtol=2**-6)


def test_a_row_has_the_same_codes_in_any_company(device: torch.device):
    weight = _weight(2 * 130, 96, device)
    codes, scales = _tokens(81, 96, device)
    alone = fp8_gate_up(codes[5:6], scales[5:6], *weight, tiling=_TILING)
    for rows in (6, 17, 81):
        among = fp8_gate_up(codes[:rows], scales[:rows], *weight, tiling=_TILING)
        assert same_bytes(among[0][5:6], alone[0]) and same_bytes(among[1][:, 5:6], alone[1])


def test_a_broken_row_stays_alone(device: torch.device):
    weight = _weight(2 * 40, 64, device)
    codes, scales = _tokens(3, 64, device)
    whole = fp8_gate_up(codes, scales, *weight, tiling=_TILING)
    scales[1] = torch.nan
    broken = fp8_gate_up(codes, scales, *weight, tiling=_TILING)
    assert broken[1][:, 1].isnan().all() and broken[0][1].float().isnan().all()
    for row in (0, 2):
        assert same_bytes(broken[0][row], whole[0][row])


def test_a_product_takes_groups(device: torch.device):
    x = torch.randn(18, 300, generator=torch.Generator().manual_seed(1)).to(device)
    x[:, 128:256] *= 50
    codes, scales = quantize_groups_reference(x, 128)
    scales = scales.T.contiguous()
    weight = _weight(70, 300, device)
    exact = fp8_gemm_reference(codes, scales, *weight)
    found = fp8_gemm_skinny(codes, scales, *weight, tiling=_SPLIT)
    bound = 2**-8 * (_values(codes, scales).abs() @ weight[0].double().abs().T * weight[1])
    assert ((found.double() - exact).abs() <= exact.abs() * 2**-8 + bound * 2**-2).all()
    alone = fp8_gemm_skinny(codes[4:5], scales[:, 4:5].contiguous(), *weight, tiling=_SPLIT)
    assert same_bytes(found[4:5], alone)


def test_what_does_not_fit_is_named(device: torch.device):
    (codes, scales), (weight, by_row) = _tokens(2, 64, device), _weight(80, 64, device)
    with pytest.raises(ValueError, match="gates and ups"):
        fp8_gate_up(codes, scales, weight[:79], by_row)
    with pytest.raises(ValueError, match="x_scale must be"):
        fp8_gate_up(codes, scales[:1], weight, by_row)
    with pytest.raises(ValueError, match="block_k must divide 128"):
        wide = Tiling(256, 1, _LAUNCH, _LAUNCH)
        fp8_gemm_skinny(codes, scales[None].contiguous(), weight, by_row, tiling=wide)
