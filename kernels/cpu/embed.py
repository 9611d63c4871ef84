"""Rows of an embedding that is held in blocks of 32, looked up."""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from kernels.cpu.block_rows import BLOCK
from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import F16, F32, FLOATS, I8, I64, LANES, Emitter, Value

FIELDS = ("tokens", "levels", "scales", "least", "x", "rows", "blocks")


@cache
def compiled_embed() -> Compiled:
    """``embed``: a function of a job of `FIELDS`.

    x: float32 [rows, 32 * blocks], w d or, where ``least`` is not 0, w d + m, rounded once. tokens:
    int64 [rows]. levels: w, int8 [vocab, 32 * blocks]. scales, least: d and m, float16
    [vocab, blocks].
    """
    emit = Emitter(ir.Module("embed"), "embed", FIELDS)
    blocks = emit.number("blocks")
    with emit.loop(emit.number("rows")) as row:
        token = emit.load(I64, emit.address("tokens"), row)
        first = emit.mul(token, blocks)
        x = emit.at(emit.address("x"), emit.mul(row, emit.mul(blocks, BLOCK)), F32)
        with emit.loop(blocks) as block:
            here = emit.mul(block, BLOCK)
            _emit_block(emit, emit.add(first, block), emit.at(x, here, F32))
    emit.finish()
    return Compiled(emit.module)


def _emit_block(emit: Emitter, block: Value, x: Value) -> None:
    build = emit.build
    scale = _half(emit, emit.address("scales"), block)
    levels = emit.at(emit.address("levels"), emit.mul(block, BLOCK))
    for column in range(0, BLOCK, LANES):
        whole = emit.load(ir.VectorType(I8, LANES), levels, column)
        emit.store(build.fmul(build.sitofp(whole, FLOATS), scale), x, column)
    with emit.when(build.icmp_signed("!=", emit.number("least"), emit.whole(0))):
        least = _half(emit, emit.address("least"), block)
        for column in range(0, BLOCK, LANES):
            emit.store(build.fadd(emit.load(FLOATS, x, column), least), x, column)


def _half(emit: Emitter, halves: Value, block: Value) -> Value:
    """One of ``halves``, in every lane."""
    return emit.spread(emit.build.fpext(emit.load(F16, halves, block), F32))
