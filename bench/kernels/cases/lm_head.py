"""Logits beside the library's product, which chooses its algorithm by the number of rows."""

from __future__ import annotations

from functools import partial

import torch

from bench.kernels.case import OURS, Case, Findings, Prepared, copies_for
from bench.kernels.cases.skinny_gemm import DENSE, Weights, make_tokens, make_weights
from bench.kernels.shapes import HEADS, Shape
from kernels.lm_head import lm_head, lm_head_reference, lm_head_workspace
from kernels.skinny_table import BF16, W8A16

_ROWS = (1, 16, 64)


def cases() -> list[Case]:
    return [
        Case(
            kernel="lm_head",
            shape=f"{shape.name} {kind}, {rows} rows",
            moved_bytes=shape.n * shape.k * (2 if kind == BF16 else 1) + 4 * rows * shape.n,
            prepare=partial(prepare, kind, shape, rows),
        )
        for kind in (BF16, W8A16)
        for shape in HEADS
        for rows in _ROWS
    ]


def prepare(kind: str, shape: Shape, rows: int, device: torch.device) -> Prepared:
    weights = make_weights(kind, shape, device, copies_for(shape.n * shape.k))
    x = make_tokens(kind, rows, shape.k, device).values
    out = torch.empty(rows, shape.n, device=device)
    workspace = lm_head_workspace(x, weights.copies[0])
    scale = None if kind == BF16 else weights.scale
    contestants = {
        OURS: lambda copy: lm_head(
            x, weights.copies[copy], weight_scale=scale, out=out, workspace=workspace
        )
    }
    if kind == BF16:
        rounded = torch.empty(rows, shape.n, dtype=torch.bfloat16, device=device)
        contestants[DENSE] = lambda copy: torch.mm(x, weights.copies[copy].t(), out=rounded)
    return Prepared(contestants, len(weights.copies), partial(_check, weights))


def _check(weights: Weights) -> Findings:
    scale = None if weights.kind == BF16 else weights.scale
    weight = weights.copies[0]
    x = make_tokens(weights.kind, 64, weights.k, weight.device).values
    together = lm_head(x, weight, weight_scale=scale)
    few = slice(0, 4096)  # enough of the vocabulary: float64 needs room
    part = None if scale is None else scale[few]
    exact = lm_head_reference(x, weight[few], weight_scale=part)
    error = (together[:, few].double() - exact).abs().amax() / exact.abs().amax()
    return {
        "largest error, of the largest value": error.item(),
        "errors within 2^-16 of the largest value": error.item() <= 2**-16,
        "the same bits in any company": all(
            torch.equal(lm_head(x[row : row + 1], weight, weight_scale=scale)[0], together[row])
            for row in (0, 31, 63)
        ),
    }
