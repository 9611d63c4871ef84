"""Products of few tokens beside cuBLASLt's FP8 (one scale, and one per row) and bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from bench.kernels.case import OURS, Case, Findings, Prepared, copies_for
from bench.kernels.shapes import LAYERS, Shape
from kernels.bf16_gemm_skinny import bf16_gemm_reference, bf16_gemm_skinny
from kernels.e4m3 import quantize_rows_reference
from kernels.fp8_gemm_skinny import fp8_gemm_reference, fp8_gemm_skinny
from kernels.quantize_weight import quantize_weight
from kernels.skinny_gemm import workspace_for
from kernels.skinny_table import BF16, FP8, W8A16, Launch, tiling_for
from kernels.w8a16_gemm_skinny import w8a16_gemm_reference, w8a16_gemm_skinny

TENSORWISE, ROWWISE, DENSE = "cublas fp8 tensorwise", "torch fp8 rowwise", "torch bf16"

_ROWS = (1, 16, 64)
_MANY = 80  # a tile of two blocks
_KERNELS = {FP8: "fp8_gemm_skinny", W8A16: "w8a16_gemm_skinny", BF16: "bf16_gemm_skinny"}
# What our FP8 must reach on the layers of each model at up to 64 rows.
_GOALS: dict[str, dict[str, float]] = {
    "70b": {TENSORWISE: 0.97, ROWWISE: 1.4},
    "8b": {TENSORWISE: 1.15, ROWWISE: 1.4},
    "8b gate_up": {ROWWISE: 1.4},
}


@dataclass(frozen=True, slots=True)
class Weights:
    """Copies of one weight; ``scale`` is float32 ``[N]``, unused for bfloat16."""

    kind: str
    copies: tuple[torch.Tensor, ...]
    scale: torch.Tensor

    @property
    def n(self) -> int:
        return self.copies[0].shape[0]

    @property
    def k(self) -> int:
        return self.copies[0].shape[1]


@dataclass(frozen=True, slots=True)
class Tokens:
    """``values`` is bfloat16, or codes with float32 scales ``[M]``."""

    values: torch.Tensor
    scale: torch.Tensor | None

    def __getitem__(self, rows: slice) -> Tokens:
        return Tokens(self.values[rows], None if self.scale is None else self.scale[rows])


def cases() -> list[Case]:
    return [
        Case(
            kernel=_KERNELS[kind],
            shape=f"{shape.name}, {rows} rows",
            moved_bytes=shape.n * shape.k * (2 if kind == BF16 else 1),
            prepare=partial(prepare, kind, shape, rows),
            goals=_goals(kind, shape),
        )
        for kind in (FP8, W8A16, BF16)
        for shape in LAYERS
        for rows in _ROWS
    ]


def _goals(kind: str, shape: Shape) -> dict[str, float]:
    if kind != FP8:
        return {}
    return _GOALS.get(shape.name, _GOALS[shape.model])


def prepare(kind: str, shape: Shape, rows: int, device: torch.device) -> Prepared:
    weights = make_weights(kind, shape, device, copies_for(shape.n * shape.k))
    x = make_tokens(kind, rows, shape.k, device)
    out = torch.empty(rows, shape.n, dtype=torch.bfloat16, device=device)
    workspace = workspace_for(kind, weights.copies[0], rows)
    contestants: dict[str, Callable[[int], object]] = {
        OURS: lambda copy: multiply(weights, x, copy, out=out, workspace=workspace)
    }
    return Prepared(
        contestants | _controls(weights, x, out),
        copies=len(weights.copies),
        check=partial(_check, weights, x),
    )


def make_weights(kind: str, shape: Shape, device: torch.device, copies: int) -> Weights:
    generator = torch.Generator(device).manual_seed(shape.n + shape.k)
    dense = torch.randn(shape.n, shape.k, generator=generator, device=device).mul_(0.02).bfloat16()
    codes, scale = quantize_weight(dense)
    one = dense if kind == BF16 else codes
    return Weights(kind, (one, *(one.clone() for _ in range(copies - 1))), scale)


def make_tokens(kind: str, rows: int, k: int, device: torch.device) -> Tokens:
    generator = torch.Generator(device).manual_seed(rows)
    x = torch.randn(rows, k, generator=generator, device=device).bfloat16()
    return Tokens(*quantize_rows_reference(x)) if kind == FP8 else Tokens(x, None)


def multiply(weights: Weights, x: Tokens, copy: int, **given: Any) -> torch.Tensor:
    weight = weights.copies[copy]
    if weights.kind == FP8:
        return fp8_gemm_skinny(x.values, x.scale, weight, weights.scale, **given)
    if weights.kind == W8A16:
        return w8a16_gemm_skinny(x.values, weight, weights.scale, **given)
    return bf16_gemm_skinny(x.values, weight, **given)


def _controls(weights: Weights, x: Tokens, out: torch.Tensor) -> dict[str, Callable[[int], object]]:
    if weights.kind == BF16:
        return {DENSE: lambda copy: torch.mm(x.values, weights.copies[copy].t(), out=out)}
    rows = len(x.values)
    one = torch.ones((), device=out.device)
    codes, scale = x.values, x.scale
    if scale is None:  # beside bfloat16 tokens FP8 products still show what is at stake
        codes, scale = quantize_rows_reference(x.values)
    scaled = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)
    by_token, by_channel = scale.view(rows, 1), weights.scale.view(1, -1)
    return {
        TENSORWISE: lambda copy: scaled(codes, weights.copies[copy].t(), scale_a=one, scale_b=one),
        ROWWISE: lambda copy: scaled(
            codes, weights.copies[copy].t(), scale_a=by_token, scale_b=by_channel
        ),
    }


def _check(weights: Weights, x: Tokens) -> Findings:
    many = make_tokens(weights.kind, _MANY, weights.k, x.values.device)
    exact = _exact(weights, many)
    result = multiply(weights, many, 0)
    error = (result.double() - exact).abs().amax() / exact.abs().amax()
    one_sign = _one_sign_error(weights, many)
    return {
        "largest error, of the largest value": error.item(),
        "errors within 2^-7 of the largest value": error.item() <= 2**-7,
        "largest error of sums of one sign": one_sign,
        "errors within 2^-8 of sums of one sign": one_sign <= 2**-8,
        "the same bits in any company": _alone_and_among(weights, many),
        "the same bits however weights are loaded": _by_all_ways(weights, many),
    }


def _exact(weights: Weights, x: Tokens) -> torch.Tensor:
    weight = weights.copies[0]
    if x.scale is not None:
        return fp8_gemm_reference(x.values, x.scale, weight, weights.scale)
    if weights.kind == W8A16:
        return w8a16_gemm_reference(x.values, weight, weights.scale)
    return bf16_gemm_reference(x.values, weight)


def _sums(weights: Weights, x: Tokens, **given: Any) -> torch.Tensor:
    """Not rounded to bfloat16, which would hide a difference."""
    out = torch.empty(len(x.values), weights.n, device=x.values.device)
    return multiply(weights, x, 0, out=out, **given)


def _one_sign_error(weights: Weights, x: Tokens) -> float:
    """Largest relative error where nothing cancels, and a sum's lost bits add up."""
    positive = Weights(weights.kind, (_magnitudes(weights.copies[0]),), weights.scale)
    tokens = Tokens(_magnitudes(x.values), x.scale)
    exact = _exact(positive, tokens)
    return ((_sums(positive, tokens).double() - exact) / exact).abs().amax().item()


def _magnitudes(values: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.bfloat16:
        return values.abs()
    return (values.view(torch.uint8) & 0x7F).view(values.dtype)


def _alone_and_among(weights: Weights, x: Tokens) -> bool:
    together, last = _sums(weights, x), _MANY - 1
    same = [torch.equal(_sums(weights, x[i : i + 1])[0], together[i]) for i in (0, 31, last)]
    for rows in (2, 8, 17, 33, 64):
        same.append(torch.equal(_sums(weights, x[_MANY - rows :]), together[_MANY - rows :]))
    return all(same)


def _by_all_ways(weights: Weights, x: Tokens) -> bool:
    tiling = tiling_for(weights.kind, weights.n, weights.k)
    launches = (
        Launch(block_n=64, warps=4, stages=3, tma=False, ahead=0),
        Launch(block_n=128, warps=8, stages=3, ahead=512, lets_in_first=True),
    )
    plain = _sums(weights, x)
    return all(
        torch.equal(_sums(weights, x, tiling=replace(tiling, many=launch)), plain)
        for launch in launches
    )
