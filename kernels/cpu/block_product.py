"""Products with weights that are held in blocks of 32, of 4 or of 8 bits.

y[r, n] = sum over blocks b of d[n, b] s[r, b] (sum over the block of w q) + m[n, b] S[r, b]

with weights d w + m (w of 4 bits, 0..15, as GGUF's Q4_1) or d w (w of 8 bits, as Q8_0), the rows'
q, s and S of `block_rows`. Sums of w q are exact in 32 bits; those over blocks are float32, from
the first block to the last: y is off by at most (blocks + 2) 2^-24 of the sum of all sizes, beside
what the rows' 16 bits leave out. A row's bits are the same in any company.
"""

from __future__ import annotations

from functools import cache

import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu.block_rows import (
    BLOCK,
    RowSource,
    emit_block_rows,
    gated_row,
    normed_row,
    plain_row,
)
from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import (
    F16,
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    INTS,
    LANES,
    Emitter,
    Value,
    Variable,
)
from kernels.cpu.team import PART_KINDS, emit_parts

TILE = 2 * LANES  # outputs that a thread computes at once
FIELDS = (
    "x", "y", "weights", "levels", "scales", "gamma", "eps",
    "rows", "blocks", "tiles", "x_stride", "y_stride", "add", "team",
)  # fmt: skip
SOURCES: dict[str, RowSource] = {"plain": plain_row, "normed": normed_row, "gated": gated_row}

_PARTS = 16  # of a product's outputs: more cost more exchanges, fewer leave threads waiting
_ROWS = 4  # at once: sums and weights of more would not fit the registers
_VECTORS = TILE // LANES
# Bytes: the processor looks ahead by itself, but neither so far nor beyond a page.
_AHEAD, _LINE = 8192, 64
_PAIRS = ir.VectorType(I16, 2 * LANES)  # two columns of eight outputs
_STEPS = BLOCK // 2
# For several rows LLVM would read all weights of 8 bits of a block before it uses them, by way of
# the stack, which costs from a tenth to a half more; a loop of few steps it leaves as it is.
_SEVERAL, _FEW_STEPS = 3, 2


@cache
def compiled_products(bits: int) -> Compiled:
    """By the name of the row source: functions of a job of `FIELDS`.

    x: float32 rows, ``x_stride`` numbers apart; y: float32 rows of 16 * ``tiles`` numbers,
    ``y_stride`` apart, which the results are added to where ``add`` is not 0. weights: what
    `pack` made. levels, scales: scratch for int16 [rows, columns] and float32 [rows, blocks, 2].
    gamma, eps (bits of a float32): of "normed" rows. "gated" rows have twice the columns. team: the
    address of who shares the work.
    """
    module = ir.Module(f"block_product_{bits}")
    work = _emit_work(module, bits)
    for name, source in SOURCES.items():
        emit = Emitter(module, name, FIELDS)
        emit_block_rows(emit, source)
        emit_parts(emit, work, _parts(emit))
        emit.finish()
    return Compiled(module)


def pack(levels: Tensor, scales: Tensor, least: Tensor | None) -> Tensor:
    """Weights in the order in which they are read: uint8.

    Args:
        levels: uint8 0..15 or int8, [outputs, columns]; outputs a multiple of 16, columns of 32.
        scales: float16 [outputs, columns / 32].
        least: as scales, what weights of 4 bits have; None for 8.
    """
    outputs, columns = levels.shape
    tiles, blocks = outputs // TILE, columns // BLOCK
    # [tile, block, vector, lane, step, pair] to [tile, block, vector, step, lane, pair]
    ordered = levels.view(tiles, _VECTORS, LANES, blocks, _STEPS, 2).permute(0, 3, 1, 4, 2, 5)
    if least is None:
        body = ordered.reshape(tiles, blocks, -1).view(torch.uint8)
    else:
        four = ordered.reshape(tiles, blocks, _VECTORS, _STEPS // 4, 4, 2 * LANES).to(torch.int32)
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


def _emit_work(module: ir.Module, bits: int) -> ir.Function:
    """A part of the tiles, for all rows."""
    emit = Emitter(module, "work", FIELDS, PART_KINDS)
    _, part, _ = emit.arguments
    tiles, parts, rows = emit.number("tiles"), _parts(emit), emit.number("rows")
    first = emit.build.sdiv(emit.mul(tiles, part), parts)
    end = emit.build.sdiv(emit.mul(tiles, emit.add(part, 1)), parts)
    with emit.loop(end, start=first) as tile:
        whole = emit.mul(emit.build.sdiv(rows, emit.whole(_ROWS)), _ROWS)
        with emit.loop(whole, step=_ROWS) as row:
            _emit_tile(emit, bits, tile, row, _ROWS)
        for rest in range(1, _ROWS):
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
    levels, scales = _row_addresses(emit, row, rows, blocks)
    sums = [[emit.variable(emit.floats(0.0)) for _ in range(_VECTORS)] for _ in range(rows)]
    with emit.loop(blocks) as block:
        here = emit.at(weights, emit.mul(block, size))
        for line in range(0, size, _LINE):
            emit.prefetch(here, _AHEAD + line)
        exact = _emit_integers(emit, bits, here, [_at_block(emit, x, block) for x in levels])
        steps, least = _emit_scales(emit, bits, here)
        for number in range(rows):
            pair = emit.mul(block, 2)
            scale = emit.spread(emit.load(F32, scales[number], pair))
            offset = emit.spread(emit.load(F32, scales[number], emit.add(pair, 1)))
            for vector, total in enumerate(sums[number]):
                product = build.fmul(build.sitofp(exact[number][vector], FLOATS), scale)
                value = emit.fma(steps[vector], product, total.value)
                total.set(emit.fma(least[vector], offset, value) if least else value)
    _emit_results(emit, tile, row, sums)


def _emit_integers(
    emit: Emitter, bits: int, weights: Value, levels: list[Value]
) -> list[list[Value]]:
    """Sums of w q over one block, [rows][vectors] of eight int32."""
    join = emit.external("llvm.x86.avx2.pmadd.wd", INTS, _PAIRS, _PAIRS)
    nothing = emit.ints(0)
    sums = [[emit.variable(nothing) for _ in range(_VECTORS)] for _ in levels]
    at_once = _FEW_STEPS if bits == 8 and len(levels) >= _SEVERAL else _STEPS
    with emit.loop(emit.whole(_STEPS // at_once)) as turn:
        here = emit.at(weights, emit.mul(turn, at_once * LANES * bits // 4))
        rows = [emit.at(row, emit.mul(turn, 2 * at_once), I16) for row in levels]
        for step in range(at_once):
            columns = [_weights_of(emit, bits, here, vector, step) for vector in range(_VECTORS)]
            for row, totals in zip(rows, sums, strict=True):
                pair = emit.build.load(emit.at(row, 2 * step, I16), typ=I32, align=2)
                both = emit.build.bitcast(emit.spread(pair), _PAIRS)
                for column, total in zip(columns, totals, strict=True):
                    product = emit.call(join, column, both)
                    total.set(emit.build.add(total.value, product))
    return [[total.value for total in totals] for totals in sums]


def _weights_of(emit: Emitter, bits: int, weights: Value, vector: int, step: int) -> Value:
    """Two columns of eight outputs, in 16 bits each."""
    build = emit.build
    if bits == 8:
        place = (vector * _STEPS + step) * 2 * LANES
        return build.sext(emit.load(ir.VectorType(I8, 2 * LANES), weights, place), _PAIRS)
    word, nibble = divmod(step, 4)
    place = (vector * _STEPS // 4 + word) * 4 * LANES
    held = build.load(emit.at(weights, place), typ=_PAIRS, align=1)
    if nibble:
        held = build.lshr(held, _words(4 * nibble))
    return held if nibble == 3 else build.and_(held, _words(15))


def _emit_scales(emit: Emitter, bits: int, block: Value) -> tuple[list[Value], list[Value]]:
    """Scales of a block's outputs, and what is added to its weights if they have 4 bits."""
    halves = emit.at(block, BLOCK * TILE * bits // 8)
    kind = ir.VectorType(F16, LANES)
    both = [
        [
            emit.build.fpext(emit.load(kind, halves, part * TILE + vector * LANES), FLOATS)
            for vector in range(_VECTORS)
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
            at = emit.add(place, vector * LANES)
            with emit.when(adds):
                total.set(build.fadd(emit.load(FLOATS, y, at), total.value))
            emit.store(total.value, y, at)


def _row_addresses(
    emit: Emitter, row: Value, rows: int, blocks: Value
) -> tuple[list[Value], list[Value]]:
    levels, scales = emit.address("levels"), emit.address("scales")
    numbers = [emit.add(row, number) for number in range(rows)]
    columns, pairs = emit.mul(blocks, BLOCK), emit.mul(blocks, 2)
    return (
        [emit.at(levels, emit.mul(number, columns), I16) for number in numbers],
        [emit.at(scales, emit.mul(number, pairs), F32) for number in numbers],
    )


def _at_block(emit: Emitter, row: Value, block: Value) -> Value:
    return emit.at(row, emit.mul(block, BLOCK), I16)


def _block_bytes(bits: int) -> int:
    halves = 2 if bits == 4 else 1
    return TILE * (BLOCK * bits // 8 + 2 * halves)


def _words(value: int) -> Value:
    return ir.Constant(_PAIRS, [value] * 2 * LANES)
