"""The few largest scores of every row, and their shares of its softmax."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from llvmlite import ir
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import F32, FLOATS, I32, I64, LANES, Emitter, Value
from kernels.cpu.exp import emit_exp
from kernels.cpu.job import Job
from kernels.cpu.largest import LOWEST, Largest

FIELDS = ("scores", "stride", "rows", "columns", "kept", "numbers", "places", "shares")


class Best:
    """Finds the ``count`` largest of every row."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept = torch.empty(count + 1, LANES)
        self._numbers = torch.empty(count, LANES, dtype=torch.int32)
        kept, numbers = self._kept.data_ptr(), self._numbers.data_ptr()
        self._job = Job(FIELDS, kept=kept, numbers=numbers)
        self._routine = _compiled(count)["best"]

    def __call__(self, scores: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Best first, lowest place first where they are equal.

        What is NaN or -inf is not among them: where there are too few, place 0 stands for what is
        missing, with the share 0. Beside a NaN no share is above 0.

        Args:
            scores: float32 [rows, columns] of fewer than 2^31 columns, which lie side by side.

        Returns:
            Places and shares of softmax(scores), [rows, count] each.
        """
        rows, columns = scores.shape
        places = np.empty((rows, self._count), dtype=np.int64)
        shares = np.empty((rows, self._count), dtype=np.float32)
        self._job.set(
            scores=scores.data_ptr(),
            stride=scores.stride(0),
            rows=rows,
            columns=columns,
            places=places.ctypes.data,
            shares=shares.ctypes.data,
        )
        self._job.run(self._routine)
        return places, shares


@cache
def _compiled(count: int) -> Compiled:
    """``best``: a function of a job of `FIELDS`. kept, numbers: scratch."""
    emit = Emitter(ir.Module("best"), "best", FIELDS)
    with emit.loop(emit.number("rows")) as row:
        _Row(emit, row, count).find()
    emit.finish()
    return Compiled(emit.module)


class _Row:
    """Each lane keeps the best of its own columns; then the best of these are taken in turn."""

    def __init__(self, emit: Emitter, row: Value, count: int) -> None:
        self._emit, self._count = emit, count
        self._scores = emit.at(emit.address("scores"), emit.mul(row, emit.number("stride")), F32)
        self._kept, self._numbers = emit.address("kept"), emit.address("numbers")
        first = emit.mul(row, count)
        self._places = emit.at(emit.address("places"), first, I64)
        self._shares = emit.at(emit.address("shares"), first, F32)
        columns = emit.number("columns")
        self._whole = emit.mul(emit.build.sdiv(columns, emit.whole(LANES)), LANES)
        # What is behind the last whole vector becomes one.
        self._rest = emit.at(self._kept, count * LANES, F32)
        emit.store(emit.floats(LOWEST), self._rest)
        with emit.loop(columns, start=self._whole) as column:
            left = emit.load(F32, self._scores, column)
            emit.store(left, self._rest, emit.build.sub(column, self._whole))

    def find(self) -> None:
        emit, build = self._emit, self._emit.build
        largest = Largest(emit, self._count)
        with emit.loop(self._whole, step=LANES) as column:
            largest.offer(emit.load(FLOATS, self._scores, column), column)
        largest.offer(emit.load(FLOATS, self._rest), self._whole)
        top = emit.fold(largest.held[0][0].value, emit.larger)
        total = self._total(emit.spread(top))
        for rank, (values, numbers) in enumerate(largest.held):
            emit.store(values.value, self._kept, rank * LANES)
            emit.store(numbers.value, self._numbers, rank * LANES)
        for rank in range(self._count):
            value, number = self._take()
            emit.store(build.sext(number, I64), self._places, rank)
            weight = emit_exp(emit, emit.spread(build.fsub(value, top)))
            share = build.fdiv(build.extract_element(weight, ir.Constant(I32, 0)), total)
            missing = build.fcmp_ordered("==", value, emit.floats(LOWEST, F32))
            emit.store(build.select(missing, emit.floats(0.0, F32), share), self._shares, rank)

    def _total(self, top: Value) -> Value:
        """Sum of e^(score - top)."""
        emit, build = self._emit, self._emit.build
        total = emit.variable(emit_exp(emit, build.fsub(emit.load(FLOATS, self._rest), top)))
        with emit.loop(self._whole, step=LANES) as column:
            weights = emit_exp(emit, build.fsub(emit.load(FLOATS, self._scores, column), top))
            total.set(build.fadd(total.value, weights))
        return emit.total(total.value)

    def _take(self) -> tuple[Value, Value]:
        """The best that is kept, and its number; it is kept no longer."""
        emit, build = self._emit, self._emit.build
        value, number = emit.variable(emit.floats(LOWEST, F32)), emit.variable(_int32(0))
        place = emit.variable(emit.whole(0))
        with emit.loop(emit.whole(self._count * LANES)) as here:
            mine, its = emit.load(F32, self._kept, here), emit.load(I32, self._numbers, here)
            larger = build.fcmp_ordered(">", mine, value.value)
            equal = build.fcmp_ordered("==", mine, value.value)
            before = build.and_(equal, build.icmp_signed("<", its, number.value))
            for held, new in ((value, mine), (number, its), (place, here)):
                held.set(build.select(build.or_(larger, before), new, held.value))
        emit.store(emit.floats(LOWEST, F32), self._kept, place.value)
        return value.value, number.value


def _int32(value: int) -> Value:
    return ir.Constant(I32, value)
