"""FP8 products of many tokens, beside the library's and beside our kernel for few."""

from __future__ import annotations

from functools import partial

import torch

from bench.kernels.case import OURS, Case, Findings, Prepared, copies_for
from bench.kernels.cases.skinny_gemm import Tokens, Weights, make_tokens, make_weights
from bench.kernels.shapes import LAYERS, Shape
from kernels.fp8_gemm import fp8_gemm
from kernels.fp8_gemm_skinny import fp8_gemm_reference, fp8_gemm_skinny
from kernels.skinny_gemm import workspace_for
from kernels.skinny_table import FP8

LIBRARY = "library"

_ROWS = (256, 1024)  # of the shortest and the longest launch of a prompt


def cases() -> list[Case]:
    return [
        Case(
            kernel="fp8_gemm",
            shape=f"{shape.name}, {rows} rows",
            moved_bytes=shape.n * shape.k + rows * (shape.k + 2 * shape.n),
            prepare=partial(prepare, shape, rows),
            goals={"skinny kernel": 1.0, LIBRARY: 0.9},
        )
        for shape in LAYERS
        for rows in _ROWS
    ]


def prepare(shape: Shape, rows: int, device: torch.device) -> Prepared:
    weights = make_weights(FP8, shape, device, copies_for(shape.n * shape.k))
    x = make_tokens(FP8, rows, shape.k, device)
    codes, scale = x.values, x.scale
    out = torch.empty(rows, shape.n, dtype=torch.bfloat16, device=device)
    workspace = workspace_for(FP8, weights.copies[0], rows)
    assert scale is not None

    def library(copy: int) -> object:
        return torch._scaled_mm(
            codes,
            weights.copies[copy].t(),
            scale_a=scale[:, None],
            scale_b=weights.scale[None, :],
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
            out=out,
        )

    return Prepared(
        {
            OURS: lambda copy: fp8_gemm(codes, scale, weights.copies[copy], weights.scale, out=out),
            "skinny kernel": lambda copy: fp8_gemm_skinny(
                codes, scale, weights.copies[copy], weights.scale, out=out, workspace=workspace
            ),
            LIBRARY: library,
        },
        copies=len(weights.copies),
        check=partial(_check, weights, x),
    )


def _check(weights: Weights, x: Tokens) -> Findings:
    assert x.scale is not None
    result = fp8_gemm(x.values, x.scale, weights.copies[0], weights.scale)
    few = slice(0, 64)
    exact = fp8_gemm_reference(x.values[few], x.scale[few], weights.copies[0], weights.scale)
    error = (result[few].double() - exact).abs().amax() / exact.abs().amax()
    # Partial sums of terms of both signs are hardly ever larger than the largest of all sums.
    bound = weights.k * 2**-18 + 2**-8
    return {
        "largest error, of the largest value": error.item(),
        "errors within K * 2^-18 + 2^-8 of the largest value": error.item() <= bound,
    }
