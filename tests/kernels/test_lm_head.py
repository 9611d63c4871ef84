from __future__ import annotations

import pytest
import torch
from support.codes import same_bytes

from kernels.e4m3 import quantize_rows_reference
from kernels.lm_head import lm_head, lm_head_reference, lm_head_workspace
from kernels.quantize_weight import quantize_weight_reference

_VOCABULARY, _WIDTH = 131, 96


def _head(device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(_VOCABULARY, _WIDTH, generator=generator).bfloat16().to(device)


def _tokens(rows: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(rows, _WIDTH, generator=generator).bfloat16().to(device)


def test_bf16_logits_are_exact_to_float32(device: torch.device):
    x, weight = _tokens(3, device), _head(device)
    logits = lm_head(x, weight)
    assert logits.dtype == torch.float32
    exact = lm_head_reference(x, weight)
    bound = _WIDTH * 2.0**-24 * (x.double().abs() @ weight.double().abs().T)
    assert ((logits.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("quantised_tokens", [False, True], ids=["bf16 tokens", "fp8 tokens"])
def test_fp8_logits_are_those_of_the_codes(device: torch.device, quantised_tokens: bool):
    x = _tokens(3, device)
    weight, weight_scale = quantize_weight_reference(_head(device))
    codes, x_scale = quantize_rows_reference(x) if quantised_tokens else (x, None)
    logits = lm_head(codes, weight, weight_scale=weight_scale, x_scale=x_scale)
    exact = lm_head_reference(codes, weight, weight_scale=weight_scale, x_scale=x_scale)
    magnitudes = codes.double().abs() @ weight.double().abs().T * weight_scale.double()
    if x_scale is not None:
        magnitudes *= x_scale.double()[:, None]
    assert ((logits.double() - exact).abs() <= 2.0**-10 * magnitudes).all()


@pytest.mark.parametrize("rows", [1, 5, 33])
def test_a_row_has_the_same_logits_in_any_company(device: torch.device, rows: int):
    x, weight = _tokens(64, device), _head(device)
    workspace = lm_head_workspace(x, weight)
    together = lm_head(x[:rows], weight, workspace=workspace)
    for row in {0, rows // 2, rows - 1}:
        assert same_bytes(lm_head(x[row : row + 1], weight), together[row : row + 1])


def test_padding_of_the_vocabulary_is_left_out(device: torch.device):
    x, weight = _tokens(2, device), _head(device)
    out = torch.full((2, 100), torch.nan, device=device)
    assert lm_head(x, weight[:100], out=out) is out
    assert same_bytes(out, lm_head(x, weight)[:, :100])


def test_scales_that_lack_are_named():
    x, weight = _tokens(1, torch.device("cpu")), _head(torch.device("cpu"))
    codes, scale = quantize_weight_reference(weight)
    with pytest.raises(ValueError, match="weight_scale must be given"):
        lm_head(x, codes)
    with pytest.raises(ValueError, match="x_scale must be given"):
        lm_head(x.to(torch.float8_e4m3fn), codes, weight_scale=scale)
    with pytest.raises(ValueError, match="out must be"):
        lm_head(x, weight, out=torch.empty(1, _VOCABULARY, dtype=torch.bfloat16))
