"""Code stays while anybody can call it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import ctypes, gc
from llvmlite import ir
from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import I64, POINTER, Emitter
from kernels.cpu.team import PART_KINDS, Team, emit_parts

def counting():
    module = ir.Module("counting")
    emit = Emitter(module, "work", ["counts", "parts", "team"], PART_KINDS)
    counts = emit.address("counts")
    emit.store(emit.add(emit.load(I64, counts), 1), counts)
    work = emit.finish()
    entry = Emitter(module, "count", ["counts", "parts", "team"])
    emit_parts(entry, work, entry.number("parts"))
    entry.finish()
    return Compiled(module)

def call(parts):
    team, counts = Team(2), (ctypes.c_int64 * 1)()
    job = (ctypes.c_int64 * 3)(ctypes.addressof(counts), parts, team.address)
    address = counting().address("count")
    gc.collect()
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(address)(ctypes.addressof(job))

call(100)
"""


def test_it_outlives_the_object_that_made_it() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], timeout=60, check=False)
    assert done.returncode == 0
