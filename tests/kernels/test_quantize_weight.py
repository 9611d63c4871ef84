from __future__ import annotations

import pytest
import torch
from support.codes import dequantised, same_bytes, within_e4m3

from kernels.quantize_weight import padded, quantize_weight, quantize_weight_reference

_NAN, _INF = float("nan"), float("inf")


def _weight(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    return (torch.randn(rows, columns, generator=generator) * 0.02).to(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((5, 33), torch.bfloat16),
        ((3, 2048), torch.float16),
        ((2, 2051), torch.float32),
        ((0, 8), torch.bfloat16),
    ],
    ids=["small", "one block", "two blocks", "no rows"],
)
def test_codes_and_scales_are_the_references(
    device: torch.device, shape: tuple[int, int], dtype: torch.dtype
):
    weight = _weight(*shape, dtype).to(device)
    codes, scales = quantize_weight(weight)
    expected_codes, expected_scales = quantize_weight_reference(weight)
    assert same_bytes(codes, expected_codes)
    assert same_bytes(scales, expected_scales)


def test_scales_are_exact_in_bfloat16_and_nothing_saturates(device: torch.device):
    weight = _weight(24, 129, torch.float32).to(device)
    codes, scales = quantize_weight(weight)
    assert torch.equal(scales.bfloat16().float(), scales)
    assert (weight.abs().amax(dim=1) / scales <= 448).all()
    assert within_e4m3(dequantised(codes, scales), weight, scales)


def test_rows_of_zeros_tiny_and_broken_rows(device: torch.device):
    weight = _weight(7, 50, torch.float32)
    weight[1] = 0
    weight[2] = 1e-42
    weight[3, 49] = _NAN
    weight[4, 0] = -_INF
    weight[5] = 0
    weight[5, 2:4] = 0.1
    weight = weight.to(device)
    codes, scales = quantize_weight(weight)
    back = dequantised(codes, scales)
    assert (back[1] == 0).all() and (back[2] == 0).all()
    assert scales.isnan().tolist() == [False, False, False, True, True, False, False]
    assert back[3:5].isnan().all()
    whole = torch.tensor([0, 5, 6], device=device)
    assert within_e4m3(back[whole], weight[whole], scales[whole])
    expected_codes, expected_scales = quantize_weight_reference(weight)
    assert same_bytes(codes, expected_codes)
    assert torch.equal(scales.isnan(), expected_scales.isnan())


@pytest.mark.parametrize(
    "shape", [(15, 32), (2, 768), (17, 577), (1, 1)], ids=["15x32", "2x768", "17x577", "1x1"]
)
def test_padding_adds_zeros_and_changes_nothing(device: torch.device, shape: tuple[int, int]):
    weight = _weight(*shape).to(device)
    codes, scales = quantize_weight(weight, pad=True)
    rows, columns = shape
    assert codes.shape == (padded(rows), padded(columns))
    assert padded(rows) % 16 == padded(columns) % 16 == 0
    plain_codes, plain_scales = quantize_weight(weight)
    assert same_bytes(codes[:rows, :columns], plain_codes)
    assert same_bytes(scales[:rows], plain_scales)
    assert (codes[rows:].float() == 0).all() and (codes[:, columns:].float() == 0).all()
    assert (scales[rows:] == 1).all()


def test_what_is_no_matrix_of_floats_is_refused():
    with pytest.raises(ValueError, match="weight must be a float matrix"):
        quantize_weight(torch.zeros(4, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="weight must be a float matrix"):
        quantize_weight(torch.zeros(4, 4, dtype=torch.int8))
