"""Queries and keys turned by their positions, keys and values written to the paged memory.

A row's heads are its queries, then its keys, then its values. A bias is added to all of them if
there is one. Queries and keys become x w / sqrt(mean(x²) + eps) if heads have norms; then each
pair (a, b) of their numbers 2i and 2i + 1 becomes (a cos - b sin, b cos + a sin) (Su et al. 2021).
All in float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from llvmlite import ir

from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import F32, FLOATS, I64, LANES, Emitter, Value

FIELDS = (
    "qkv", "row_stride", "bias", "norms", "eps", "turns", "positions", "slots", "memory",
    "plane_stride", "rows", "heads", "kv_heads", "head_dim",
)  # fmt: skip


@cache
def compiled_write() -> Compiled:
    """``write``: a function of a job of `FIELDS`.

    qkv: float32 rows, ``row_stride`` numbers apart, changed in place. bias: one row, or 0. norms:
    float32 [heads + kv_heads, head_dim], or 0; eps: bits of a float32. turns: float32
    [context, 2, head_dim], every cosine twice, then every sine twice, the first of two negative.
    positions, slots: int64 [rows]. memory: float32 [2 * kv_heads] planes of tokens,
    ``plane_stride`` numbers apart. head_dim: a multiple of 8.
    """
    emit = Emitter(ir.Module("rope_kv_write"), "write", FIELDS)
    heads, kv_heads = emit.number("heads"), emit.number("kv_heads")
    turned = emit.add(heads, kv_heads)
    with emit.loop(emit.number("rows")) as row:
        x = emit.at(emit.address("qkv"), emit.mul(row, emit.number("row_stride")), F32)
        _emit_bias(emit, x, emit.add(turned, kv_heads))
        with emit.loop(turned) as head:
            _emit_turn(emit, row, head, emit.at(x, emit.mul(head, emit.number("head_dim")), F32))
        _emit_copy(emit, row, emit.at(x, emit.mul(heads, emit.number("head_dim")), F32))
    emit.finish()
    return Compiled(emit.module)


def _emit_bias(emit: Emitter, x: Value, heads: Value) -> None:
    with _if_given(emit, "bias"), emit.loop(_width(emit, heads), step=LANES) as column:
        bias = emit.load(FLOATS, emit.address("bias"), column)
        emit.store(emit.build.fadd(emit.load(FLOATS, x, column), bias), x, column)


def _emit_turn(emit: Emitter, row: Value, head: Value, x: Value) -> None:
    build, width = emit.build, emit.number("head_dim")
    with _if_given(emit, "norms"):
        _emit_norm(emit, x, emit.at(emit.address("norms"), emit.mul(head, width), F32))
    position = emit.load(I64, emit.address("positions"), row)
    cosines = emit.at(emit.address("turns"), emit.mul(position, emit.mul(width, 2)), F32)
    sines = emit.at(cosines, width, F32)
    with emit.loop(width, step=LANES) as column:
        pairs = emit.load(FLOATS, x, column)
        others = emit.shuffled(pairs, [place ^ 1 for place in range(LANES)])
        straight = build.fmul(pairs, emit.load(FLOATS, cosines, column))
        emit.store(emit.fma(others, emit.load(FLOATS, sines, column), straight), x, column)


def _emit_norm(emit: Emitter, x: Value, weight: Value) -> None:
    build, width = emit.build, emit.number("head_dim")
    squares = emit.variable(emit.floats(0.0))
    with emit.loop(width, step=LANES) as column:
        part = emit.load(FLOATS, x, column)
        squares.set(emit.fma(part, part, squares.value))
    mean = build.fdiv(emit.total(squares.value), build.sitofp(width, F32))
    length = emit.sqrt(build.fadd(mean, emit.real("eps")))
    inverse = emit.spread(build.fdiv(emit.floats(1.0, F32), length))
    with emit.loop(width, step=LANES) as column:
        scaled = build.fmul(emit.load(FLOATS, x, column), inverse)
        emit.store(build.fmul(scaled, emit.load(FLOATS, weight, column)), x, column)


def _emit_copy(emit: Emitter, row: Value, entries: Value) -> None:
    """Keys, then values, each head to the row's slot in a plane of its own."""
    width = emit.number("head_dim")
    slot = emit.load(I64, emit.address("slots"), row)
    with emit.loop(emit.mul(emit.number("kv_heads"), 2)) as plane:
        start = emit.mul(plane, emit.number("plane_stride"))
        place = emit.at(emit.address("memory"), emit.add(start, emit.mul(slot, width)), F32)
        entry = emit.at(entries, emit.mul(plane, width), F32)
        with emit.loop(width, step=LANES) as column:
            emit.store(emit.load(FLOATS, entry, column), place, column)


def _if_given(emit: Emitter, field: str) -> AbstractContextManager[None]:
    return emit.when(emit.build.icmp_signed("!=", emit.number(field), emit.whole(0)))


def _width(emit: Emitter, heads: Value) -> Value:
    return emit.mul(heads, emit.number("head_dim"))
