"""Compiled functions that take a job: an array of numbers and addresses."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir

from kernels.cpu.emitter import I32, POINTER, Emitter
from kernels.cpu.machine import target_machine

Run = Callable[[int], None]  # takes the address of a job


class Compiled:
    """Machine code of a module; it lives as long as this object."""

    def __init__(self, module: ir.Module) -> None:
        module.triple = binding.get_process_triple()
        machine = target_machine()
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        passes = binding.create_pass_builder(
            machine, binding.create_pipeline_tuning_options(speed_level=2)
        )
        passes.getModulePassManager().run(parsed, passes)
        self._engine = binding.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        self._functions: dict[str, Run] = {}

    def __getitem__(self, name: str) -> Run:
        """The function ``name``; Python's lock is free while it runs."""
        if name not in self._functions:
            kind: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
            self._functions[name] = kind(self._engine.get_function_address(name))
        return self._functions[name]


class Job:
    """The array that a routine takes, kept from call to call."""

    def __init__(self, fields: Sequence[str], **values: int) -> None:
        self._places = {field: place for place, field in enumerate(fields)}
        self._numbers = (ctypes.c_int64 * len(fields))()
        self._address = ctypes.addressof(self._numbers)
        self.set(**values)

    def set(self, **values: int) -> None:
        """Numbers, addresses, or `float_bits`."""
        for field, value in values.items():
            self._numbers[self._places[field]] = value

    def run(self, routine: Run) -> None:
        routine(self._address)


def float_bits(value: float) -> int:
    """A float32 as a job holds it."""
    return int.from_bytes(struct.pack("<f", value), "little")


def emit_parallel(emit: Emitter, work: ir.Function) -> None:
    """Call ``work`` with the same job on every thread, and wait for all."""
    start = emit.external("GOMP_parallel", ir.VoidType(), POINTER, POINTER, I32, I32)
    as_wanted = ir.Constant(I32, 0)
    emit.call(start, work, emit.job, as_wanted, as_wanted)
