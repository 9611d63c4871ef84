"""Rows of activations in blocks of 32 numbers of 16 bits, as products of blocks take them.

x[i] is about s q[i] with s = max |x| / 32767 over the block and q[i] the nearest integer: off by
at most s / 2, 2^-16 of the block's largest number. Beside s stands s times the sum of the q, for
weights that have an offset. A number that is not finite makes its whole block not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from llvmlite import ir

from kernels.cpu.emitter import F32, FLOATS, I16, INTS, LANES, Emitter, Value
from kernels.cpu.exp import emit_exp

BLOCK = 32
_LEVELS = 32767
_LEAST = 1e-30  # the largest number of a block counts as at least this: zeros have a scale, too


class RowSource(Protocol):
    """What a row's numbers are made of."""

    def __call__(self, emit: Emitter, row: Value) -> Callable[[Value], Value]:
        """Emit what is done once per row; returns what emits eight numbers from a column on."""
        ...


def plain_row(emit: Emitter, row: Value) -> Callable[[Value], Value]:
    """The numbers as they are."""
    x = _row(emit, row)
    return lambda column: emit.load(FLOATS, x, column)


def normed_row(emit: Emitter, row: Value) -> Callable[[Value], Value]:
    """x gamma / sqrt(mean(x²) + eps): RMSNorm (Zhang, Sennrich 2019)."""
    x, gamma = _row(emit, row), emit.address("gamma")
    columns = _columns(emit)
    squares = emit.variable(emit.floats(0.0))
    with emit.loop(columns, step=LANES) as column:
        part = emit.load(FLOATS, x, column)
        squares.set(emit.fma(part, part, squares.value))
    build = emit.build
    count = build.sitofp(columns, F32)
    mean = build.fdiv(emit.total(squares.value), count)
    length = emit.sqrt(build.fadd(mean, emit.real("eps")))
    inverse = emit.spread(build.fdiv(emit.floats(1.0, F32), length))

    def numbers(column: Value) -> Value:
        scaled = build.fmul(emit.load(FLOATS, x, column), inverse)
        return build.fmul(scaled, emit.load(FLOATS, gamma, column))

    return numbers


def gated_row(emit: Emitter, row: Value) -> Callable[[Value], Value]:
    """SiLU(gate) up (Shazeer 2020) of a row that holds the gates, then the ups."""
    x, columns = _row(emit, row), _columns(emit)
    build = emit.build

    def numbers(column: Value) -> Value:
        gate, up = emit.load(FLOATS, x, column), emit.load(FLOATS, x, emit.add(column, columns))
        bottom = build.fadd(emit.floats(1.0), emit_exp(emit, build.fneg(gate)))
        return build.fmul(build.fdiv(gate, bottom), up)

    return numbers


def emit_block_rows(emit: Emitter, source: RowSource) -> None:
    """Write all rows of the job: int16 ``levels`` [blocks, rows, 32], ``scales`` [blocks, rows, 2].

    So rows that are multiplied together lie side by side, and one register is the address of all.
    """
    with emit.loop(emit.number("rows")) as row:
        numbers = source(emit, row)
        with emit.loop(emit.number("blocks")) as block:
            first = emit.mul(block, BLOCK)
            parts = [numbers(emit.add(first, start)) for start in range(0, BLOCK, LANES)]
            scale, whole = _levels(emit, parts)
            levels, scales = block_of_rows(emit, block, row)
            for place, part in enumerate(whole):
                narrow = emit.build.trunc(part, ir.VectorType(I16, LANES))
                emit.store(narrow, levels, place * LANES)
            total = emit.build.sitofp(emit.fold(_sum(emit, whole), emit.build.add), F32)
            emit.store(scale, scales, 0)
            emit.store(emit.build.fmul(scale, total), scales, 1)


def block_of_rows(emit: Emitter, block: Value, row: Value) -> tuple[Value, Value]:
    """Addresses of a block's levels and scales, of ``row`` and of those behind it."""
    place = emit.add(emit.mul(block, emit.number("rows")), row)
    levels = emit.at(emit.address("levels"), emit.mul(place, BLOCK), I16)
    return levels, emit.at(emit.address("scales"), emit.mul(place, 2), F32)


def _levels(emit: Emitter, parts: list[Value]) -> tuple[Value, list[Value]]:
    """Scale of a block and its integers."""
    build = emit.build
    # As integers, the bits of numbers without a sign are in order, and NaN is above all.
    sizes = [build.and_(build.bitcast(x, INTS), emit.ints(0x7FFFFFFF)) for x in parts]
    largest = sizes[0]
    for size in sizes[1:]:
        largest = _larger(emit, largest, size)
    top = build.bitcast(emit.fold(largest, lambda a, b: _larger(emit, a, b)), F32)
    least = emit.floats(_LEAST, F32)
    top = build.select(build.fcmp_ordered("<", top, least), least, top)
    scale = build.fmul(top, emit.floats(1 / _LEVELS, F32))
    inverse = emit.spread(build.fdiv(emit.floats(float(_LEVELS), F32), top))
    nearest = emit.external("llvm.x86.avx.cvt.ps2dq.256", INTS, FLOATS)
    return scale, [emit.call(nearest, build.fmul(x, inverse)) for x in parts]


def _larger(emit: Emitter, left: Value, right: Value) -> Value:
    return emit.build.select(emit.build.icmp_signed(">", left, right), left, right)


def _sum(emit: Emitter, parts: list[Value]) -> Value:
    total = parts[0]
    for part in parts[1:]:
        total = emit.build.add(total, part)
    return total


def _row(emit: Emitter, row: Value) -> Value:
    return emit.at(emit.address("x"), emit.mul(row, emit.number("x_stride")), F32)


def _columns(emit: Emitter) -> Value:
    return emit.mul(emit.number("blocks"), BLOCK)
