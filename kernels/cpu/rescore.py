"""The largest results of a product once more, by weights that are more exact.

A head in blocks of 4 bits is read in little more than half the time of one of 8. Its logits are
off by more, but what is best by the one is among the few best by the other: these alone are
computed by both.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from kernels.cpu.block_rows import BLOCK, block_of_rows
from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import F16, F32, FLOATS, I8, I16, I32, I64, INTS, LANES, Emitter, Value
from kernels.cpu.largest import Largest

COUNT = 4  # of each of eight lanes: 32 of a row
FIELDS = (
    "y", "y_stride", "rows", "columns", "outputs", "blocks",
    "levels", "scales", "exact_levels", "exact_scales", "numbers",
)  # fmt: skip

_HALF = BLOCK // 2
_LINE = 64  # bytes of the cache


@cache
def compiled_rescore() -> Compiled:
    """``rescore``: a function of a job of `FIELDS`.

    y: float32 rows of ``columns`` results, a multiple of 8, ``y_stride`` numbers apart; the
    `COUNT` largest of those whose numbers are alike modulo 8 become what
    `block_product` makes of the exact weights, bit for bit, if they are among the first
    ``outputs``. levels, scales: what that product has left of the rows, [blocks, rows, ..].
    exact_levels, exact_scales: int8 [outputs, 32 * blocks] and float16 [outputs, blocks].
    numbers: scratch for int32 [COUNT, 8].
    """
    emit = Emitter(ir.Module("rescore"), "rescore", FIELDS)
    outputs = emit.number("outputs")
    with emit.loop(emit.number("rows")) as row:
        y = emit.at(emit.address("y"), emit.mul(row, emit.number("y_stride")), F32)
        _emit_choice(emit, y)
        with emit.loop(emit.whole(COUNT * LANES)) as place:
            number = emit.build.sext(emit.load(I32, emit.address("numbers"), place), I64)
            with emit.when(emit.build.icmp_signed("<", number, outputs)):
                emit.store(_emit_product(emit, row, number), y, number)
    emit.finish()
    return Compiled(emit.module)


def _emit_choice(emit: Emitter, y: Value) -> None:
    """Write ``numbers`` of a row."""
    largest = Largest(emit, COUNT)
    with emit.loop(emit.number("columns"), step=LANES) as column:
        largest.offer(emit.load(FLOATS, y, column), column)
    for rank, (_, numbers) in enumerate(largest.held):
        emit.store(numbers.value, emit.address("numbers"), rank * LANES)
    blocks = emit.number("blocks")
    # They lie far apart, so the processor does not look ahead by itself.
    with emit.loop(emit.whole(COUNT * LANES)) as place:
        number = emit.build.sext(emit.load(I32, emit.address("numbers"), place), I64)
        first = emit.mul(number, blocks)
        emit.prefetch(emit.at(emit.address("exact_scales"), first, F16), 0)
        with emit.loop(blocks, step=_LINE // BLOCK) as block:
            levels = emit.mul(emit.add(first, block), BLOCK)
            emit.prefetch(emit.at(emit.address("exact_levels"), levels), 0)


def _emit_product(emit: Emitter, row: Value, output: Value) -> Value:
    build, blocks = emit.build, emit.number("blocks")
    first = emit.mul(output, blocks)
    total = emit.variable(emit.floats(0.0, F32))
    with emit.loop(blocks) as block:
        here = emit.add(first, block)
        weights = emit.at(emit.address("exact_levels"), emit.mul(here, BLOCK))
        step = build.fpext(emit.load(F16, emit.address("exact_scales"), here), F32)
        levels, scales = block_of_rows(emit, block, row)
        whole = build.sitofp(_emit_integers(emit, weights, levels), F32)
        total.set(emit.fma(step, build.fmul(whole, emit.load(F32, scales)), total.value))
    return total.value


def _emit_integers(emit: Emitter, weights: Value, levels: Value) -> Value:
    """Sum of w q over a block: int32."""
    build, pairs = emit.build, ir.VectorType(I16, _HALF)
    join = emit.external("llvm.x86.avx2.pmadd.wd", INTS, pairs, pairs)
    sums = []
    for start in (0, _HALF):
        exact = build.sext(emit.load(ir.VectorType(I8, _HALF), weights, start), pairs)
        sums.append(emit.call(join, exact, emit.load(pairs, levels, start)))
    return emit.fold(build.add(*sums), build.add)
