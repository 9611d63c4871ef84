"""Products with weights that are held in blocks of 32, of 4 or of 8 bits.

y[r, n] = sum over blocks b of d[n, b] s[r, b] (sum over the block of w q) + m[n, b] S[r, b]

with weights d w + m (w of 4 bits, 0..15, as GGUF's Q4_1) or d w (w of 8 bits, as Q8_0), the rows'
q, s and S of `block_rows`. Sums of w q are exact in 32 bits; those over blocks are float32, from
the first block to the last: y is off by at most (blocks + 2) 2^-24 of the sum of all sizes, beside
what the rows' 16 bits leave out. A row's bits are the same in any company.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu.block_rows import (
    BLOCK,
    RowSource,
    block_of_rows,
    emit_block_rows,
    gated_row,
    normed_row,
    plain_row,
)
from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import (
    F16,
    F32,
    I8,
    I16,
    I32,
    Emitter,
    Value,
    Variable,
)
from kernels.cpu.machine import vector_lanes
from kernels.cpu.team import PART_KINDS, emit_parts

TILE = 16  # outputs that a thread computes at once
FIELDS = (
    "x", "y", "weights", "levels", "scales", "gamma", "eps",
    "rows", "blocks", "tiles", "x_stride", "y_stride", "add", "team",
)  # fmt: skip
SOURCES: dict[str, RowSource] = {"plain": plain_row, "normed": normed_row, "gated": gated_row}

_PARTS = 16  # of a product's outputs: more cost more exchanges, fewer leave threads waiting
_ROWS = {8: 4, 16: 8}  # at once, by lanes: sums and weights of more would not fit the registers
# Bytes: the processor looks ahead by itself, but neither so far nor beyond a page.
_AHEAD, _LINE = 8192, 64
_STEPS = BLOCK // 2
# For several rows and 16 registers LLVM would read all weights of 8 bits of a block before it uses
# them, by way of the stack, which costs from a tenth to a half more; a loop of few steps it leaves
# as it is.
_SEVERAL, _FEW_STEPS = 3, 2


def compiled_products(bits: int, lanes: int | None = None) -> Compiled:
    """By the name of the row source: functions of a job of `FIELDS`.

    x: float32 rows, ``x_stride`` numbers apart; y: float32 rows of 16 * ``tiles`` numbers,
    ``y_stride`` apart, which the results are added to where ``add`` is not 0. weights: what
    `pack` made. levels, scales: scratch for int16 [blocks, rows, 32] and float32
    [blocks, rows, 2]. gamma, eps (bits of a float32): of "normed" rows. "gated" rows have twice
    the columns. team: the address of who shares the work. ``lanes``: what weights were packed
    for; results are the same.
    """
    return _compiled(bits, lanes or vector_lanes())


@cache
def _compiled(bits: int, lanes: int) -> Compiled:
    module = ir.Module(f"block_product_{bits}_{lanes}")
    work = _emit_work(module, bits, lanes)
    for name, source in SOURCES.items():
        emit = Emitter(module, name, FIELDS)
        emit_block_rows(emit, source)
        emit_parts(emit, work, _parts(emit))
        emit.finish()
    return Compiled(module)


def pack(levels: Tensor, scales: Tensor, least: Tensor | None, lanes: int | None = None) -> Tensor:
    """Weights in the order in which they are read: uint8.

    Args:
        levels: uint8 0..15 or int8, [outputs, columns]; outputs a multiple of 16, columns of 32.
        scales: float16 [outputs, columns / 32].
        least: as scales, what weights of 4 bits have; None for 8.
        lanes: of the vectors that read them, 8 or 16; None: those of this processor.
    """
    lanes = lanes or vector_lanes()
    outputs, columns = levels.shape
    tiles, blocks = outputs // TILE, columns // BLOCK
    # [tile, block, vector, lane, step, pair] to [tile, block, vector, step, lane, pair]
    ordered = levels.view(tiles, -1, lanes, blocks, _STEPS, 2).permute(0, 3, 1, 4, 2, 5)
    if least is None:
        body = ordered.reshape(tiles, blocks, -1).view(torch.uint8)
    else:
        four = ordered.reshape(tiles, blocks, -1, _STEPS // 4, 4, 2 * lanes).to(torch.int32)
        places = torch.tensor([0, 4, 8, 12], dtype=torch.int32)[:, None]
        words = four.bitwise_left_shift(places).sum(dim=-2)
        body = words.to(torch.uint16).reshape(tiles, blocks, -1).view(torch.uint8)
    parts = [body] + [
        half.view(tiles, TILE, blocks).transpose(1, 2).contiguous().view(torch.uint8)
        for half in (scales, least)
        if half is not None
    ]
    return torch.cat(parts, dim=-1).reshape(-1)


def reference(x: Tensor, levels: Tensor, scales: Tensor, least: Tensor | None) -> Tensor:
    """The product in float64, of rows that are not rounded."""
    weights = levels.double() * scales.double().repeat_interleave(BLOCK, dim=1)
    if least is not None:
        weights += least.double().repeat_interleave(BLOCK, dim=1)
    return x.double() @ weights.T


def _emit_work(module: ir.Module, bits: int, lanes: int) -> ir.Function:
    """A part of the tiles, for all rows."""
    emit = Emitter(module, "work", FIELDS, PART_KINDS, lanes)
    most = _ROWS[lanes]
    _, part, _ = emit.arguments
    tiles, parts, rows = emit.number("tiles"), _parts(emit), emit.number("rows")
    first = emit.build.sdiv(emit.mul(tiles, part), parts)
    end = emit.build.sdiv(emit.mul(tiles, emit.add(part, 1)), parts)
    with emit.loop(end, start=first) as tile:
        whole = emit.mul(emit.build.sdiv(rows, emit.whole(most)), most)
        with emit.loop(whole, step=most) as row:
            _emit_tile(emit, bits, tile, row, most)
        for rest in range(1, most):
            left = emit.build.icmp_signed("==", emit.build.sub(rows, whole), emit.whole(rest))
            with emit.when(left):
                _emit_tile(emit, bits, tile, whole, rest)
    return emit.finish()


def _parts(emit: Emitter) -> Value:
    return emit.least(emit.number("tiles"), emit.whole(_PARTS))


def _emit_tile(emit: Emitter, bits: int, tile: Value, row: Value, rows: int) -> None:
    """Results of ``rows`` rows from ``row`` on for the outputs of ``tile``."""
    build, blocks = emit.build, emit.number("blocks")
    size = _block_bytes(bits)
    weights = emit.at(emit.address("weights"), emit.mul(tile, emit.mul(blocks, size)))
    sums = [[emit.variable(emit.floats(0.0)) for _ in _vectors(emit)] for _ in range(rows)]
    with emit.loop(blocks) as block:
        here = emit.at(weights, emit.mul(block, size))
        for line in range(0, size, _LINE):
            emit.prefetch(here, _AHEAD + line)
        levels, scales = block_of_rows(emit, block, row)
        exact = _emit_integers(emit, bits, here, levels, rows)
        steps, least = _emit_scales(emit, bits, here)
        for number in range(rows):
            scale, offset = (emit.spread(emit.load(F32, scales, 2 * number + n)) for n in (0, 1))
            for vector, total in enumerate(sums[number]):
                product = build.fmul(build.sitofp(exact[number][vector], emit.float_vector), scale)
                value = emit.fma(steps[vector], product, total.value)
                total.set(emit.fma(least[vector], offset, value) if least else value)
    _emit_results(emit, tile, row, sums)


def _emit_integers(
    emit: Emitter, bits: int, weights: Value, levels: Value, rows: int
) -> list[list[Value]]:
    """Sums of w q over one block, [rows][vectors] of int32."""
    pairs, build = _pairs(emit), emit.build
    chains = range(_chains(emit, rows))
    nothing = emit.ints(0)
    sums = [[[emit.variable(nothing) for _ in chains] for _ in _vectors(emit)] for _ in range(rows)]
    at_once = _steps_at_once(emit, bits, rows)
    with emit.loop(emit.whole(_STEPS // at_once)) as turn:
        here = emit.at(weights, emit.mul(turn, at_once * emit.lanes * bits // 4))
        first = emit.at(levels, emit.mul(turn, 2 * at_once), I16)
        for step in range(at_once):
            columns = [_weights_of(emit, bits, here, n, step) for n in range(len(_vectors(emit)))]
            for row, totals in enumerate(sums):
                place = emit.at(first, row * BLOCK + 2 * step, I16)
                both = build.bitcast(emit.spread(build.load(place, typ=I32, align=2)), pairs)
                for column, parts in zip(columns, totals, strict=True):
                    total = parts[step % len(parts)]
                    total.set(_added(emit, total.value, column, both))
    return [[_together(emit, parts) for parts in totals] for totals in sums]


def _weights_of(emit: Emitter, bits: int, weights: Value, vector: int, step: int) -> Value:
    """Two columns of a vector's outputs, in 16 bits each."""
    build, pairs = emit.build, _pairs(emit)
    if bits == 8:
        place = (vector * _STEPS + step) * pairs.count
        return build.sext(emit.load(ir.VectorType(I8, pairs.count), weights, place), pairs)
    word, nibble = divmod(step, 4)
    place = (vector * _STEPS // 4 + word) * 2 * pairs.count
    held = build.load(emit.at(weights, place), typ=pairs, align=1)
    if nibble:
        held = build.lshr(held, _words(emit, 4 * nibble))
    return held if nibble == 3 else build.and_(held, _words(emit, 15))


def _emit_scales(emit: Emitter, bits: int, block: Value) -> tuple[list[Value], list[Value]]:
    """Scales of a block's outputs, and what is added to its weights if they have 4 bits."""
    halves = emit.at(block, BLOCK * TILE * bits // 8)
    kind = ir.VectorType(F16, emit.lanes)
    both = [
        [
            emit.build.fpext(emit.load(kind, halves, part * TILE + first), emit.float_vector)
            for first in _vectors(emit)
        ]
        for part in range(2 if bits == 4 else 1)
    ]
    return both[0], both[1] if bits == 4 else []


def _emit_results(emit: Emitter, tile: Value, row: Value, sums: list[list[Variable]]) -> None:
    build = emit.build
    y, stride = emit.address("y"), emit.number("y_stride")
    adds = build.icmp_signed("!=", emit.number("add"), emit.whole(0))
    for number, totals in enumerate(sums):
        place = emit.add(emit.mul(emit.add(row, number), stride), emit.mul(tile, TILE))
        for vector, total in enumerate(totals):
            at = emit.add(place, vector * emit.lanes)
            with emit.when(adds):
                total.set(build.fadd(emit.load(emit.float_vector, y, at), total.value))
            emit.store(total.value, y, at)


def _block_bytes(bits: int) -> int:
    halves = 2 if bits == 4 else 1
    return TILE * (BLOCK * bits // 8 + 2 * halves)


def _vectors(emit: Emitter) -> range:
    """Of a tile, by their first outputs."""
    return range(0, TILE, emit.lanes)


def _added(emit: Emitter, total: Value, weights: Value, numbers: Value) -> Value:
    """total + the products of two columns, in every lane."""
    pairs, ints = weights.type, emit.int_vector
    if emit.lanes == 16:
        # It saturates, which sums of a block never do; of the one that does not LLVM may make two.
        join = emit.external("llvm.x86.avx512.vpdpwssds.512", ints, ints, pairs, pairs)
        return emit.call(join, total, weights, numbers)
    join = emit.external("llvm.x86.avx2.pmadd.wd", ints, pairs, pairs)
    return emit.build.add(total, emit.call(join, weights, numbers))


def _chains(emit: Emitter, rows: int) -> int:
    """Sums of a block that are kept apart: one alone would wait for each product."""
    if emit.lanes == 8:
        return 1  # there are two vectors of each row, and no registers for more
    return 4 if rows <= 4 else 2


def _steps_at_once(emit: Emitter, bits: int, rows: int) -> int:
    """What a turn of the loop over a block's pairs of columns holds."""
    return _FEW_STEPS if bits == 8 and rows >= _SEVERAL and emit.lanes == 8 else _STEPS


def _together(emit: Emitter, parts: list[Variable]) -> Value:
    """Their sum: of integers, so in any order."""
    total = parts[0].value
    for part in parts[1:]:
        total = emit.build.add(total, part.value)
    return total


def _pairs(emit: Emitter) -> Any:
    """Of two columns: 16 bits for each, of all outputs of a vector."""
    return ir.VectorType(I16, 2 * emit.lanes)


def _words(emit: Emitter, value: int) -> Value:
    return ir.Constant(_pairs(emit), [value] * 2 * emit.lanes)
