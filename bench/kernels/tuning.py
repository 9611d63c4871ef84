"""Finds tilings of skinny products: what to write into ``kernels/skinny_table.py``.

A full search would compile hundreds of kernels per shape. What matters most is searched first: the
tile's height together with the slices of K, then its depth with the stages, then warps, and how
and how early weights are loaded; each step starts from the best of the one before. Times at 16 and
64 rows count alike, because one tiling serves all rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
import triton

from bench.kernels.case import OURS, Prepared, copies_for
from bench.kernels.cases.skinny_gemm import Weights, make_tokens, make_weights, multiply
from bench.kernels.shapes import HEADS, LAYERS, Shape
from bench.kernels.timing import time_launches
from foredraft.config import usable_cores
from kernels.skinny_arguments import Extras
from kernels.skinny_gemm import skinny_gemm, workspace_for
from kernels.skinny_table import BF16, Tiling, untuned

TUNED_SHAPES = (*LAYERS, *HEADS)

_ROWS = (16, 64)
_MIN_SLICE = 256


def tune(
    operands: Sequence[str], shapes: Sequence[Shape], device: torch.device, rounds: int
) -> Iterator[str]:
    """Lines of the table, one per operands and shape."""
    for kind, shape in itertools.product(operands, shapes):
        weights = make_weights(kind, shape, device, copies_for(shape.n * shape.k))
        best, time = untuned(kind, shape.n, shape.k), math.inf
        for step in (heights, depths, loads):
            tilings = step(kind, shape, best)
            _compile(weights, tilings, device)
            for tiling in tilings:
                found = _time(weights, tiling, device, rounds)
                if found < time:
                    best, time = tiling, found
        yield f"    ({kind!r}, {shape.n}, {shape.k}): {best!r},  # {shape.name}, {time:.1f} us"
        del weights
        torch.cuda.empty_cache()


def _compile(weights: Weights, tilings: Sequence[Tiling], device: torch.device) -> None:
    """All at once: compiling takes far longer than measuring. What fails does so again later."""
    extras = Extras(None if weights.kind == BF16 else weights.scale)
    with (
        ThreadPoolExecutor(usable_cores()) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),
    ):
        for rows, tiling in itertools.product(_ROWS, tilings):
            x = make_tokens(weights.kind, rows, weights.k, device)
            skinny_gemm(
                weights.kind,
                x.values,
                weights.copies[0],
                replace(extras, x_scale=x.scale),
                tiling=tiling,
                compile_only=True,
            )


def heights(kind: str, shape: Shape, start: Tiling) -> list[Tiling]:
    splits = [count for count in (1, 2, 3, 4, 6, 8) if shape.k // count >= _MIN_SLICE]
    return [
        replace(start, block_n=block_n, splits=count, warps=max(block_n // 16, 4))
        for block_n in (32, 64, 128)
        for count in splits
        if 64 <= -(-shape.n // block_n) * count <= 2048 or count == 1
    ]


def depths(kind: str, shape: Shape, start: Tiling) -> list[Tiling]:
    depths = (64, 128) if kind == BF16 else (128, 256)
    return [
        replace(start, block_k=block_k, stages=stages)
        for block_k in depths
        for stages in (3, 4, 6, 8)
        if (block_k, stages) != (start.block_k, start.stages)
    ]


def loads(kind: str, shape: Shape, start: Tiling) -> list[Tiling]:
    other_warps = replace(start, warps=12 - start.warps)  # 4 or 8
    by_pointer = [replace(one, tma=False) for one in (start, other_warps)]
    early = [replace(start, ahead=ahead) for ahead in (start.block_k, 512, 1024)]
    return [other_warps, *by_pointer, *early]


def _time(weights: Weights, tiling: Tiling, device: torch.device, rounds: int) -> float:
    """Geometric mean over `_ROWS`, in microseconds; infinite where it cannot be launched."""
    logarithms = 0.0
    for rows in _ROWS:
        times, _ = time_launches(_prepared(weights, tiling, rows, device), min(rounds, 5))
        logarithms += math.log(times.get(OURS, math.inf))
    return math.exp(logarithms / len(_ROWS))


def _prepared(weights: Weights, tiling: Tiling, rows: int, device: torch.device) -> Prepared:
    x = make_tokens(weights.kind, rows, weights.k, device)
    out = torch.empty(rows, weights.n, dtype=torch.bfloat16, device=device)
    workspace = workspace_for(weights.kind, weights.copies[0], rows, tiling)
    launch = partial(multiply, weights, x, out=out, workspace=workspace, tiling=tiling)
    return Prepared({OURS: launch}, len(weights.copies), dict)
