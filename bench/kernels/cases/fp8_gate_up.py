"""Gates and ups with SiLU and quantisation behind them, beside two kernels that do the same."""

from __future__ import annotations

from functools import partial

import torch

from bench.kernels.case import OURS, Case, Findings, Prepared, copies_for
from bench.kernels.cases.skinny_gemm import Tokens, Weights, make_tokens, make_weights
from bench.kernels.shapes import LAYERS, Shape
from kernels.fp8_gate_up import fp8_gate_up, fp8_gate_up_reference
from kernels.fp8_gemm_skinny import fp8_gemm_skinny
from kernels.silu_mul_quant import silu_mul_quant
from kernels.skinny_arguments import GROUP
from kernels.skinny_table import GATED

TWO_KERNELS = "product, then silu_mul_quant"

_ROWS = (1, 16, 64)
_MANY = 80


def cases() -> list[Case]:
    return [
        Case(
            kernel="fp8_gate_up",
            shape=f"{shape.name}, {rows} rows",
            moved_bytes=shape.n * shape.k,
            prepare=partial(prepare, shape, rows),
            goals={TWO_KERNELS: 1.0},
        )
        for shape in LAYERS
        if shape.layer == "gate_up"
        for rows in _ROWS
    ]


def prepare(shape: Shape, rows: int, device: torch.device) -> Prepared:
    weights = make_weights(GATED, shape, device, copies_for(shape.n * shape.k))
    x = make_tokens(GATED, rows, shape, device)
    assert x.scale is not None
    codes = torch.empty(rows, shape.n // 2, dtype=torch.float8_e4m3fn, device=device)
    scales = torch.empty(-(-shape.n // 2 // GROUP), rows, device=device)
    both = torch.empty(rows, shape.n, dtype=torch.bfloat16, device=device)
    given = x.values, x.scale
    by_row = torch.empty(rows, device=device)

    def ours(copy: int) -> object:
        return fp8_gate_up(*given, weights.copies[copy], weights.scale, codes=codes, scales=scales)

    def two(copy: int) -> object:
        fp8_gemm_skinny(*given, weights.copies[copy], weights.scale, out=both)
        return silu_mul_quant(both, codes=codes, scales=by_row)

    check = partial(_check, weights, make_tokens(GATED, _MANY, shape, device))
    return Prepared({OURS: ours, TWO_KERNELS: two}, len(weights.copies), check)


def _check(weights: Weights, x: Tokens) -> Findings:
    assert x.scale is not None
    weight = weights.copies[0]
    together = fp8_gate_up(x.values, x.scale, weight, weights.scale)
    exact = fp8_gate_up_reference(x.values, x.scale, weight, weights.scale)
    differing = together[0].view(torch.uint8) != exact[0].view(torch.uint8)
    same = []
    for rows in (1, 9, 33, 64):
        some = fp8_gate_up(x.values[-rows:], x.scale[-rows:], weight, weights.scale)
        pairs = zip(some, (together[0][-rows:], together[1][:, -rows:]), strict=True)
        same += [
            torch.equal(a.view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in pairs
        ]
    return {
        "the same bits in any company": all(same),
        "other codes than the reference's": differing.double().mean().item(),
        "few other codes than the reference's": differing.double().mean().item() < 0.05,
    }
