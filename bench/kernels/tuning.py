"""Finds tilings of skinny products: what to write into ``kernels/skinny_table.py``.

A product is timed as the engine runs it, behind the norm that makes its tokens: what can be fetched
while that one runs counts, and so does what it would take from the next. A full search would
compile hundreds of kernels per shape. So every way to cut K is tried with tiles of each height; the
best few then get their depth, their warps, and how and how early weights are loaded, each from the
best of the one before. Few rows count twice: trees of the usual size are among them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
import triton

from bench.kernels.case import OURS, Prepared, copies_for
from bench.kernels.cases.skinny_gemm import Tokens, Weights, make_tokens, make_weights, multiply
from bench.kernels.shapes import HEADS, LAYERS, SMALL_HEADS, Shape
from bench.kernels.timing import time_launches
from foredraft.config import usable_cores
from kernels.rmsnorm_residual_quant import rmsnorm_residual, rmsnorm_residual_quant
from kernels.skinny_arguments import Extras
from kernels.skinny_gemm import skinny_gemm, workspace_for
from kernels.skinny_table import BF16, FP8, Launch, Tiling, tiling_for, untuned

TUNED_SHAPES = (*LAYERS, *HEADS, *SMALL_HEADS)

_FEW, _MANY = (1, 17), (64, 65)  # every width of a tile that a step of a tree has
_MIN_SLICE = 256
_KEPT = 2  # ways to cut K that are looked at closely
_ROUNDS = 5
_EPS = 1e-5


def tune(
    operands: Sequence[str], shapes: Sequence[Shape], device: torch.device, rounds: int
) -> Iterator[str]:
    """Lines of the table, one per operands and shape."""
    for kind, shape in itertools.product(operands, shapes):
        weights = make_weights(kind, shape, device, copies_for(shape.n * shape.k))
        found = search(kind, shape, Clock(weights, device, min(rounds, _ROUNDS)))
        times = f"{found.few.us:.1f} and {found.many.us:.1f} us with a norm before"
        yield f"    ({kind!r}, {shape.n}, {shape.k}): {found.tiling!r},  # {shape.name}: {times}"
        del weights
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Timed:
    """A launch and its geometric mean over rows."""

    launch: Launch
    us: float


@dataclass(frozen=True, slots=True)
class Found:
    """The best launches of one way to cut K."""

    cut: Tiling
    few: Timed
    many: Timed

    @property
    def tiling(self) -> Tiling:
        return replace(self.cut, few=self.few.launch, many=self.many.launch)


class Times(Protocol):
    """What a search asks."""

    def compile(self, tilings: Iterable[Tiling], rows: Sequence[int]) -> None: ...

    def best(self, cut: Tiling, launches: Iterable[Launch], rows: Sequence[int]) -> Timed: ...


class Clock:
    """Times launches of one weight."""

    def __init__(self, weights: Weights, device: torch.device, rounds: int) -> None:
        self._weights = weights
        self._device = device
        self._rounds = rounds
        self._tokens = {
            rows: make_tokens(weights.kind, rows, weights.k, device) for rows in (*_FEW, *_MANY)
        }

    def best(self, cut: Tiling, launches: Iterable[Launch], rows: Sequence[int]) -> Timed:
        """The fastest of them; infinite where none can be launched."""
        timed = [Timed(launch, self._time(_with(cut, launch), rows)) for launch in launches]
        return min(timed, key=lambda one: one.us)

    def compile(self, tilings: Iterable[Tiling], rows: Sequence[int]) -> None:
        """All at once: it takes far longer than measuring. What fails does so again later."""
        weights = self._weights
        extras = Extras(None if weights.kind == BF16 else weights.scale)
        with (
            ThreadPoolExecutor(usable_cores()) as pool,
            triton.AsyncCompileMode(pool, ignore_errors=True),
        ):
            for count, tiling in itertools.product(rows, tilings):
                x = self._tokens[count]
                given = replace(extras, x_scale=x.scale)
                skinny_gemm(
                    weights.kind, x.values, weights.copies[0], given,
                    tiling=tiling, compile_only=True,
                )  # fmt: skip

    def _time(self, tiling: Tiling, rows: Sequence[int]) -> float:
        logarithms = 0.0
        for count in rows:
            times, _ = time_launches(self._prepared(tiling, count), self._rounds)
            logarithms += math.log(times.get(OURS, math.inf))
        return math.exp(logarithms / len(rows))

    def _prepared(self, tiling: Tiling, rows: int) -> Prepared:
        weights, x = self._weights, self._tokens[rows]
        out = torch.empty(rows, weights.n, dtype=torch.bfloat16, device=self._device)
        workspace = workspace_for(weights.kind, weights.copies[0], rows, tiling)
        launch = partial(multiply, weights, x, out=out, workspace=workspace, tiling=tiling)
        before = norm_before(weights.kind, x)

        def both(copy: int) -> None:
            before()
            launch(copy)

        return Prepared({OURS: both}, len(weights.copies), dict)


def norm_before(kind: str, x: Tokens) -> Callable[[], object]:
    """The norm that writes ``x``."""
    rows, width = x.values.shape
    made = torch.randn(rows, width, device=x.values.device).bfloat16()
    gamma = torch.ones(width, device=x.values.device)
    if kind == FP8:
        given = {"codes": x.values, "scales": x.scale}
        return partial(rmsnorm_residual_quant, made, gamma, _EPS, **given)
    return partial(rmsnorm_residual, made, gamma, _EPS, out=x.values)


def search(kind: str, shape: Shape, clock: Times) -> Found:
    """The best tiling."""
    tried = cuts(kind, shape)
    few, many = _FEW[:1], _MANY[:1]
    for rows, heights in ((few, few_heights()), (many, many_heights())):
        clock.compile([_with(cut, launch) for cut in tried for launch in heights], rows)
    found = [
        Found(cut, clock.best(cut, few_heights(), few), clock.best(cut, many_heights(), many))
        for cut in tried
    ]
    close = [refined(one, clock) for one in sorted(found, key=_weight)[:_KEPT]]
    return min(close, key=_weight)


def refined(found: Found, clock: Times) -> Found:
    """The same cut with launches that were looked at closely."""
    cut, best = found.cut, {}
    for name, rows in (("few", _FEW), ("many", _MANY)):
        launch: Launch = getattr(found, name).launch
        clock.compile([_with(cut, one) for one in depths(launch)], rows)
        launch = clock.best(cut, depths(launch), rows).launch
        clock.compile([_with(cut, one) for one in loads(launch)], rows)
        best[name] = clock.best(cut, loads(launch), rows)
    return Found(cut, best["few"], best["many"])


def _weight(found: Found) -> float:
    return 2 * math.log(found.few.us) + math.log(found.many.us)


def _with(cut: Tiling, launch: Launch) -> Tiling:
    return replace(cut, few=launch, many=launch)


def cuts(kind: str, shape: Shape) -> list[Tiling]:
    """Ways to cut K that give a GPU enough to do, those of the rule and of the table among them."""
    rule = untuned(kind, shape.n, shape.k)
    block_ks = (64, 128) if kind == BF16 else (128, 256)
    known = [(rule.block_k, rule.splits)]
    table = tiling_for(kind, shape.n, shape.k)
    known.append((table.block_k, table.splits))
    tiles = -(-shape.n // 64)
    known += [
        (block_k, splits)
        for block_k in block_ks
        for splits in (1, 2, 3, 4, 6, 8)
        if shape.k // splits >= _MIN_SLICE and (64 <= tiles * splits <= 560 or splits == 1)
    ]
    return [replace(rule, block_k=k, splits=splits) for k, splits in dict.fromkeys(known)]


def few_heights() -> list[Launch]:
    return [Launch(64, 4, 6), Launch(128, 8, 6), Launch(256, 8, 3)]


def many_heights() -> list[Launch]:
    return [Launch(64, 4, 6), Launch(128, 8, 4), Launch(256, 8, 3)]


def depths(start: Launch) -> list[Launch]:
    """``start`` first, and other stages and warps."""
    stages = [replace(start, stages=count) for count in (3, 4, 6, 8) if count != start.stages]
    return [start, *stages, replace(start, warps=12 - start.warps)]  # 4 or 8


def loads(start: Launch) -> list[Launch]:
    """``start`` first, and other ways to load weights; those by ``ahead`` need no compiling."""
    ahead = [replace(start, ahead=count) for count in (0, 1024, 2048, 4096)]
    other = [replace(start, lets_in_first=True), replace(start, tma=False)]
    return [start, *ahead, *other, replace(start, tail=False)]
