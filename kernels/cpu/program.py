"""Routines one behind the other in one call, so that Python does nothing between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import I64, POINTER, Emitter
from kernels.cpu.job import Job

_FIELDS = ("calls", "count")


class Step(NamedTuple):
    """``routine``: its address; ``values`` of the ``fields`` of its job, 0 where there are none."""

    routine: int
    fields: Sequence[str]
    values: Mapping[str, int]


class Program:
    """Steps whose jobs are kept from call to call. What they point to must be kept elsewhere."""

    def __init__(self, steps: Sequence[Step]) -> None:
        width = max(len(step.fields) for step in steps)
        self._numbers = np.zeros(len(steps) * width, dtype=np.int64)
        places: defaultdict[str, list[int]] = defaultdict(list)
        for number, step in enumerate(steps):
            for place, field in enumerate(step.fields, number * width):
                self._numbers[place] = step.values.get(field, 0)
                places[field].append(place)
        self._places = {field: np.array(found) for field, found in places.items()}
        self._calls: NDArray[np.int64] = np.empty((len(steps), 2), dtype=np.int64)
        self._calls[:, 0] = [step.routine for step in steps]
        first, size = self._numbers.ctypes.data, width * self._numbers.itemsize
        self._calls[:, 1] = first + size * np.arange(len(steps))
        self._job = Job(_FIELDS, calls=self._calls.ctypes.data)
        self._run = _compiled()["run"]

    def __len__(self) -> int:
        return len(self._calls)

    def set(self, **values: int) -> None:
        """Numbers or addresses, for every job that has such a field."""
        for field, value in values.items():
            self._numbers[self._places[field]] = value

    def run(self, count: int | None = None) -> None:
        """The first ``count`` steps, or all."""
        self._job.set(count=len(self) if count is None else count)
        self._job.run(self._run)


@cache
def _compiled() -> Compiled:
    emit = Emitter(ir.Module("program"), "run", _FIELDS)
    build, calls = emit.build, emit.address("calls")
    kind = ir.PointerType(ir.FunctionType(ir.VoidType(), [POINTER]))
    with emit.loop(emit.number("count")) as number:
        call = emit.mul(number, 2)
        routine = build.inttoptr(emit.load(I64, calls, call), kind)
        job = build.inttoptr(emit.load(I64, calls, emit.add(call, 1)), POINTER)
        emit.call(routine, job)
    emit.finish()
    return Compiled(emit.module)
