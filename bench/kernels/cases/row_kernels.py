"""What stands before linear layers, and weights being quantised: bound by memory throughout."""

from __future__ import annotations

from functools import partial

import torch

from bench.kernels.case import OURS, Case, Findings, Prepared, copies_for
from kernels.e4m3 import quantize_rows_reference
from kernels.quantize_rows import quantize_rows
from kernels.quantize_weight import quantize_weight, quantize_weight_reference
from kernels.rmsnorm_residual_quant import (
    rmsnorm_residual_quant,
    rmsnorm_residual_quant_reference,
)
from kernels.silu_mul_quant import silu_mul_quant, silu_mul_quant_reference

_EPS = 1e-5
_ROWS = (1, 64, 4096)
_WIDTHS = {"8b": (4096, 14336), "70b": (8192, 28672)}
# Of copy bandwidth, where there are rows enough to tell.
_GOAL = 0.8


def cases() -> list[Case]:
    found = []
    for model, (hidden, inner) in _WIDTHS.items():
        for rows in _ROWS:
            shape, goal = f"{model}, {rows} rows", _GOAL if rows == 4096 else 0.0
            norm = partial(prepare_norm, hidden, rows)
            found.append(
                Case("rmsnorm_residual_quant", shape, 7 * rows * hidden, norm, of_copy=goal)
            )
            silu = partial(prepare_silu, inner, rows)
            found.append(Case("silu_mul_quant", shape, 5 * rows * inner, silu, of_copy=goal))
            plain = partial(prepare_rows, hidden, rows)
            found.append(Case("quantize_rows", shape, 3 * rows * hidden, plain, of_copy=goal))
        weight = partial(prepare_weight, hidden, hidden)
        found.append(Case("quantize_weight", f"{model} o", 3 * hidden * hidden, weight))
    return found


def prepare_norm(width: int, rows: int, device: torch.device) -> Prepared:
    count = copies_for(7 * rows * width)
    x, residual = _copies(rows, width, count, 1, device), _copies(rows, width, count, 2, device)
    gamma = torch.linspace(0.5, 1.5, width, device=device)
    codes, scales = _outputs(rows, width, device)
    kept = torch.empty_like(x[0])

    def ours(copy: int) -> object:
        return rmsnorm_residual_quant(
            x[copy],
            gamma,
            _EPS,
            residual=residual[copy],
            codes=codes,
            scales=scales,
            new_residual=kept,
        )

    def check() -> Findings:
        together = rmsnorm_residual_quant(x[0], gamma, _EPS, residual=residual[0])
        alone = rmsnorm_residual_quant(x[0][-1:], gamma, _EPS, residual=residual[0][-1:])
        exact = rmsnorm_residual_quant_reference(x[0], gamma, _EPS, residual[0])
        return {
            "the same bits in any company": _same_last_row(alone, together),
            "the reference's residual": torch.equal(together[2], exact[2]),
            "other codes than the reference's": _differing(together[0], exact[0]),
        }

    return Prepared({OURS: ours}, count, check)


def prepare_silu(width: int, rows: int, device: torch.device) -> Prepared:
    count = copies_for(5 * rows * width)
    gate_up = _copies(rows, 2 * width, count, 3, device)
    codes, scales = _outputs(rows, width, device)

    def check() -> Findings:
        together = silu_mul_quant(gate_up[0])
        alone = silu_mul_quant(gate_up[0][-1:])
        exact = silu_mul_quant_reference(gate_up[0])
        return {
            "the same bits in any company": _same_last_row(alone, together),
            "other codes than the reference's": _differing(together[0], exact[0]),
        }

    ours = partial(silu_mul_quant, codes=codes, scales=scales)
    return Prepared({OURS: lambda copy: ours(gate_up[copy])}, count, check)


def prepare_rows(width: int, rows: int, device: torch.device) -> Prepared:
    count = copies_for(3 * rows * width)
    x = _copies(rows, width, count, 5, device)
    codes, scales = _outputs(rows, width, device)

    def check() -> Findings:
        together, alone = quantize_rows(x[0]), quantize_rows(x[0][-1:])
        exact = quantize_rows_reference(x[0])
        return {
            "the same bits in any company": _same_last_row(alone, together),
            "other codes than the reference's": _differing(together[0], exact[0]),
        }

    ours = partial(quantize_rows, codes=codes, scales=scales)
    return Prepared({OURS: lambda copy: ours(x[copy])}, count, check)


def prepare_weight(n: int, k: int, device: torch.device) -> Prepared:
    count = copies_for(3 * n * k)
    weights = _copies(n, k, count, 4, device)

    def check() -> Findings:
        codes, scales = quantize_weight(weights[0])
        exact_codes, exact_scales = quantize_weight_reference(weights[0])
        return {
            "the reference's codes": _differing(codes, exact_codes) == 0,
            "the reference's scales": torch.equal(scales, exact_scales),
        }

    return Prepared({OURS: lambda copy: quantize_weight(weights[copy])}, count, check)


def _copies(
    rows: int, width: int, count: int, seed: int, device: torch.device
) -> list[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    one = torch.randn(rows, width, generator=generator, device=device).bfloat16()
    return [one, *(one.clone() for _ in range(count - 1))]


def _outputs(rows: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=device)
    return codes, torch.empty(rows, device=device)


def _same_last_row(alone: tuple[torch.Tensor, ...], together: tuple[torch.Tensor, ...]) -> bool:
    pairs = zip(alone, together, strict=True)
    return all(torch.equal(_bytes(a), _bytes(b[-1:])) for a, b in pairs)


def _differing(codes: torch.Tensor, exact: torch.Tensor) -> float:
    """The share of codes that differ."""
    return (_bytes(codes) != _bytes(exact)).double().mean().item()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
