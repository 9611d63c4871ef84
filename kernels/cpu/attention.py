"""Attention of rows over the entries they see, each row by itself.

out = sum(e^(s - m) v) / sum(e^(s - m)) with s = q k / sqrt(head_dim) and m the largest s, over the
entries of a row in the order of its positions: that order alone decides how its sums are rounded,
not where entries lie nor which other rows there are. All in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from llvmlite import ir

from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import F32, FLOATS, I32, I64, LANES, Emitter, Value
from kernels.cpu.exp import emit_exp
from kernels.cpu.team import PART_KINDS, emit_parts

FIELDS = (
    "q", "q_stride", "memory", "plane_stride", "out", "out_stride", "scores", "capacity",
    "index", "ranges", "rows", "kv_heads", "team",
)  # fmt: skip
SEGMENTS = 2  # pieces of ``index`` that a row's entries are: what all rows see, and its own


@cache
def compiled_attention(head_dim: int, group: int) -> Compiled:
    """``attend``: a function of a job of `FIELDS`; ``head_dim`` is a multiple of 8.

    q: float32 rows of kv_heads * group heads, ``q_stride`` numbers apart; out: likewise. memory:
    float32 planes of tokens, keys of all heads, then values, ``plane_stride`` numbers apart. index:
    int32 slots; ranges: int64 [rows, 2, 2], first place and number of two pieces of ``index``.
    scores: scratch for float32 [threads, group, capacity]; capacity: at least 8 more than the
    entries that any row sees. team: the address of who shares the work, in as many threads.
    """
    module = ir.Module("attention")
    emit = Emitter(module, "work", FIELDS, PART_KINDS)
    _, part, thread = emit.arguments
    kv_heads = emit.number("kv_heads")
    row, head = emit.build.sdiv(part, kv_heads), emit.build.srem(part, kv_heads)
    _Item(emit, head_dim, group, row, head, thread).attend()
    work = emit.finish()
    entry = Emitter(module, "attend", FIELDS)
    emit_parts(entry, work, entry.mul(entry.number("rows"), entry.number("kv_heads")))
    entry.finish()
    return Compiled(module)


class _Item:
    """The queries of one row that share keys and values."""

    def __init__(
        self, emit: Emitter, head_dim: int, group: int, row: Value, head: Value, thread: Value
    ) -> None:
        self._emit, self._width, self._group = emit, head_dim, group
        self._ranges = emit.at(emit.address("ranges"), emit.mul(row, 2 * SEGMENTS), I64)
        plane = emit.number("plane_stride")
        memory = emit.address("memory")
        self._keys = emit.at(memory, emit.mul(head, plane), F32)
        values = emit.add(head, emit.number("kv_heads"))
        self._values = emit.at(memory, emit.mul(values, plane), F32)
        column = emit.mul(head, group * head_dim)
        self._q = emit.at(
            emit.address("q"), emit.add(emit.mul(row, emit.number("q_stride")), column), F32
        )
        self._out = emit.at(
            emit.address("out"), emit.add(emit.mul(row, emit.number("out_stride")), column), F32
        )
        self._capacity = emit.number("capacity")
        mine = emit.mul(thread, emit.mul(self._capacity, group))
        self._scores = emit.at(emit.address("scores"), mine, F32)

    def attend(self) -> None:
        count = self._score()
        for query in range(self._group):
            scores = self._emit.at(self._scores, self._emit.mul(self._capacity, query), F32)
            total = self._weigh(scores, count)
            self._add_up(query, scores, total)

    def _score(self) -> Value:
        """Write the scores of all queries; returns how many entries there are."""
        emit = self._emit
        scale = emit.floats(self._width**-0.5, F32)
        with self._entries() as (place, slot):
            key = emit.at(self._keys, emit.mul(slot, self._width), F32)
            sums: list[Value] = [emit.floats(0.0)] * self._group
            for column in range(0, self._width, LANES):
                part = emit.load(FLOATS, key, column)
                for query in range(self._group):
                    q = emit.load(FLOATS, self._q, query * self._width + column)
                    sums[query] = emit.fma(part, q, sums[query])
            for query, products in enumerate(sums):
                score = emit.build.fmul(emit.total(products), scale)
                at = emit.add(emit.mul(self._capacity, query), place)
                emit.store(score, self._scores, at)
        count = emit.whole(0)
        for segment in range(SEGMENTS):
            count = emit.add(count, emit.load(I64, self._ranges, 2 * segment + 1))
        return count

    def _weigh(self, scores: Value, count: Value) -> Value:
        """e^(s - m) in the place of scores; returns their sum."""
        emit, build = self._emit, self._emit.build
        lowest = emit.floats(float("-inf"))
        emit.store(lowest, scores, count)  # the rest of the last vector weighs nothing
        largest = emit.variable(lowest)
        with emit.loop(count, step=LANES) as place:
            largest.set(emit.larger(largest.value, emit.load(FLOATS, scores, place)))
        top = emit.spread(emit.fold(largest.value, emit.larger))
        total = emit.variable(emit.floats(0.0))
        with emit.loop(count, step=LANES) as place:
            weights = emit_exp(emit, build.fsub(emit.load(FLOATS, scores, place), top))
            emit.store(weights, scores, place)
            total.set(build.fadd(total.value, weights))
        return emit.total(total.value)

    def _add_up(self, query: int, weights: Value, total: Value) -> None:
        emit, build = self._emit, self._emit.build
        columns = range(0, self._width, LANES)
        sums = [emit.variable(emit.floats(0.0)) for _ in columns]
        with self._entries() as (place, slot):
            value = emit.at(self._values, emit.mul(slot, self._width), F32)
            weight = emit.spread(emit.load(F32, weights, place))
            for column, held in zip(columns, sums, strict=True):
                held.set(emit.fma(emit.load(FLOATS, value, column), weight, held.value))
        inverse = emit.spread(build.fdiv(emit.floats(1.0, F32), total))
        for column, held in zip(columns, sums, strict=True):
            at = query * self._width + column
            emit.store(build.fmul(held.value, inverse), self._out, at)

    @contextmanager
    def _entries(self) -> Iterator[tuple[Value, Value]]:
        """Each entry's number and slot, in the order of positions."""
        emit = self._emit
        index, place = emit.address("index"), emit.variable(emit.whole(0))
        with emit.loop(emit.whole(SEGMENTS)) as segment:
            first = emit.load(I64, self._ranges, emit.mul(segment, 2))
            count = emit.load(I64, self._ranges, emit.add(emit.mul(segment, 2), 1))
            with emit.loop(count) as number:
                slot = emit.load(I32, index, emit.add(first, number))
                yield place.value, emit.build.sext(slot, I64)
                place.set(emit.add(place.value, 1))
