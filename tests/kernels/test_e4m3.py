from __future__ import annotations

import numpy
import pytest
import torch
import triton
import triton.language as tl

from kernels.e4m3 import (
    quantize_e4m3,
    quantize_rows_reference,
    row_amax,
    scale_of,
    scale_reference,
    to_bf16,
    to_e4m3,
)

_WIDTH = 1024


@triton.jit
def _round_to_e4m3(x, out, count, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    value = tl.load(x + at, mask=at < count)
    tl.store(out + at, to_e4m3(value), mask=at < count)


@triton.jit
def _round_to_bf16(x, out, count, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    value = tl.load(x + at, mask=at < count)
    tl.store(out + at, to_bf16(value), mask=at < count)


@triton.jit
def _quantize(x, codes, scales, columns, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    value = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    scale, reciprocal = scale_of(row_amax(value, 0))
    tl.store(codes + row * columns + at, to_e4m3(value * reciprocal), mask=at < columns)
    tl.store(scales + row, scale)


def _awkward() -> torch.Tensor:
    """Every code, every point half-way between two and its neighbours, and the far ends."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halves = (codes[1:] + codes[:-1]) / 2
    middle = torch.cat([codes, halves, halves.nextafter(codes[1:]), halves.nextafter(codes[:-1])])
    inf, nan = float("inf"), float("nan")
    ends = torch.tensor([448.1, 463.9, 464, 464.1, 470, 1e4, 3e38, 1e-30, 1e-45, 2**-10, inf, nan])
    generator = torch.Generator().manual_seed(3)
    anything = torch.randint(0, 2**31 - 1, (2048,), generator=generator, dtype=torch.int32)
    magnitudes = torch.cat([middle, ends, anything.view(torch.float32)])
    return torch.cat([magnitudes, -magnitudes])


def test_rounding_to_e4m3_is_the_references_byte_for_byte(device: torch.device):
    x = _awkward().to(device)
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=device)
    _round_to_e4m3[(triton.cdiv(len(x), _WIDTH),)](x, out, len(x), WIDTH=_WIDTH)
    assert torch.equal(out.view(torch.uint8), quantize_e4m3(x).view(torch.uint8))


@pytest.mark.parametrize(
    ("value", "code"),
    [(470.0, 0x7E), (-1e4, 0xFE), (float("inf"), 0x7E), (float("nan"), 0x7F), (-0.0, 0x80)],
    ids=["470", "-1e4", "inf", "nan", "-0"],
)
def test_the_reference_saturates_and_keeps_nan(value: float, code: int):
    assert quantize_e4m3(torch.tensor([value])).view(torch.uint8).item() == code


def test_the_reference_takes_the_nearest_code():
    x = torch.linspace(-500, 500, 20_011)
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    both = torch.cat([codes, -codes])
    nearest = (x[:, None] - both).abs().amin(dim=1)
    assert torch.equal((quantize_e4m3(x).float() - x).abs(), nearest)


def test_rounding_to_bf16_is_torchs(device: torch.device):
    x = _awkward().to(device)
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=device)
    _round_to_bf16[(triton.cdiv(len(x), _WIDTH),)](x, out, len(x), WIDTH=_WIDTH)
    assert torch.equal(out.isnan(), x.isnan())
    real = ~x.isnan()
    assert torch.equal(out[real].view(torch.int16), x[real].bfloat16().view(torch.int16))


def _rows() -> torch.Tensor:
    """Plain rows around every kind of odd one."""
    rows = torch.randn(9, 37, generator=torch.Generator().manual_seed(5))
    rows[1] = 0
    rows[2] = 1e-38  # below the floor of the scale
    rows[3] *= 1e-20
    rows[4, 7] = float("nan")
    rows[5, 36] = float("-inf")
    rows[6] *= 1e30
    rows[7] = 0
    rows[7, 3:5] = 0.1
    return rows


def test_rows_are_quantised_as_the_reference_does(device: torch.device):
    x = _rows().to(device)
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=device)
    scales = torch.empty(len(x), device=device)
    _quantize[(len(x),)](x, codes, scales, x.shape[1], WIDTH=64)
    expected_codes, expected_scales = quantize_rows_reference(x)
    assert torch.equal(codes.view(torch.uint8), expected_codes.view(torch.uint8))
    numpy.testing.assert_array_equal(scales.cpu().numpy(), expected_scales.cpu().numpy())


def test_odd_rows_stay_what_they_are():
    x = _rows()
    codes, scales = quantize_rows_reference(x)
    back = codes.float() * scales[:, None]
    broken = torch.tensor([4, 5])
    whole = torch.tensor([0, 3, 6, 7, 8])
    assert back[broken].isnan().all() and scales[broken].isnan().all()
    assert (back[1] == 0).all()
    assert (back[2].abs() <= 2.0**-100).all()
    error = (back[whole] - x[whole]).abs()
    coarse = scales[whole, None] * 2.0**-10
    assert (error <= torch.maximum(x[whole].abs() * 0.0626, coarse * 1.001)).all()


def test_a_scale_is_finite_exactly_where_its_row_is():
    amax = torch.tensor([0.0, 1e-45, 1e-38, 1.0, 3.4e38, float("inf"), float("nan")])
    scale, reciprocal = scale_reference(amax)
    assert scale.isfinite().tolist() == [True] * 5 + [False] * 2
    assert reciprocal.isfinite().tolist() == [True] * 5 + [False] * 2
    assert (scale[:5] > 0).all()
