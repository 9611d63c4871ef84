"""Comparing FP8 codes and scales, NaN with NaN."""

from __future__ import annotations

import torch


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether both hold the same bits, shape and dtype."""
    left, right = left.contiguous(), right.contiguous()
    same_form = left.shape == right.shape and left.dtype == right.dtype
    return same_form and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def dequantised(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return codes.float() * scales[:, None]


def within_e4m3(back: torch.Tensor, exact: torch.Tensor, scales: torch.Tensor) -> bool:
    """Whether every value is off by no more than its code's half step, and a little."""
    half_step = torch.maximum(exact.abs() * 2**-4, scales[:, None] * 2**-10)
    return bool(((back - exact).abs() <= half_step * 1.001).all())
