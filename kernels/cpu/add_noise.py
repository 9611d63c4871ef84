"""Gumbel noise of token ids, added to their scores.

scores[r, n] += heat[r] G with G = -log(-log(1 - v)), v = (h + 0.5) / 2^32 held below 1, and h the
hash of the id under the row's key (two rounds of a mixer of 32 bits; Wellons 2018 found its
factors). The hash is the engine's; G is within rounding what its logarithms give.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import F32, FLOATS, I32, I64, INTS, LANES, Emitter, Value
from kernels.cpu.job import Job
from kernels.cpu.log import emit_log, emit_log1m

FIELDS = ("scores", "stride", "rows", "columns", "spread", "keys", "heats")
_GOLDEN = 0x9E3779B1  # an id times this, in 32 bits, is what the hash begins with
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B))  # shift, factor
_BELOW_ONE = 1.0 - 2.0**-24


class AddNoise:
    """Adds the noise of some ids to scores."""

    def __init__(self, ids: NDArray[np.int64]) -> None:
        """``ids``: [columns], from 0 to 2^32 - 1."""
        self._spread = ids.astype(np.uint32) * np.uint32(_GOLDEN)
        self._job = Job(FIELDS, spread=self._spread.ctypes.data, columns=len(ids))
        self._routine = _compiled()["add"]

    def __call__(self, scores: Tensor, keys: NDArray[np.int64], heats: NDArray[np.float32]) -> None:
        """In place, to every row that has a heat.

        Args:
            scores: float32 [rows, columns], which lie side by side.
            keys: below 2^32, [rows].
            heats: [rows]; 0: the row stays as it is.
        """
        self._job.set(
            scores=scores.data_ptr(),
            stride=scores.stride(0),
            rows=len(scores),
            keys=keys.ctypes.data,
            heats=heats.ctypes.data,
        )
        self._job.run(self._routine)


@cache
def _compiled() -> Compiled:
    """``add``: a function of a job of `FIELDS`."""
    emit = Emitter(ir.Module("add_noise"), "add", FIELDS)
    build, columns = emit.build, emit.number("columns")
    whole = emit.mul(build.sdiv(columns, emit.whole(LANES)), LANES)
    with emit.loop(emit.number("rows")) as row:
        heat = emit.load(F32, emit.address("heats"), row)
        key = emit.spread(build.trunc(emit.load(I64, emit.address("keys"), row), I32))
        scores = emit.at(emit.address("scores"), emit.mul(row, emit.number("stride")), F32)
        spread = emit.address("spread")
        with emit.when(build.fcmp_unordered("!=", heat, emit.floats(0.0, F32))):
            heats = emit.spread(heat)
            with emit.loop(whole, step=LANES) as column:
                noise = _emit_noise(emit, emit.load(INTS, spread, column), key)
                sums = emit.fma(noise, heats, emit.load(FLOATS, scores, column))
                emit.store(sums, scores, column)
            with emit.loop(columns, start=whole) as column:
                alone = emit.spread(emit.load(I32, spread, column))
                noise = build.extract_element(_emit_noise(emit, alone, key), ir.Constant(I32, 0))
                sums = emit.fma(noise, heat, emit.load(F32, scores, column))
                emit.store(sums, scores, column)
    emit.finish()
    return Compiled(emit.module)


def _emit_noise(emit: Emitter, spread: Value, key: Value) -> Value:
    build = emit.build
    mixed = build.add(_emit_mix(emit, build.xor(spread, key)), key)
    h = build.uitofp(_emit_mix(emit, mixed), FLOATS)
    v = build.fmul(build.fadd(h, emit.floats(0.5)), emit.floats(2.0**-32))
    highest = emit.floats(_BELOW_ONE)
    v = build.select(build.fcmp_ordered("<", v, highest), v, highest)
    return build.fneg(emit_log(emit, build.fneg(emit_log1m(emit, v))))


def _emit_mix(emit: Emitter, x: Value) -> Value:
    build = emit.build
    for shift, factor in _ROUNDS:
        x = build.mul(build.xor(x, build.lshr(x, emit.ints(shift))), emit.ints(factor))
    return build.xor(x, build.lshr(x, emit.ints(16)))
