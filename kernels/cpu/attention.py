"""Attention of rows over the entries they see, each row by itself.

out = sum(e^(s - m) v) / sum(e^(s - m)) with s = q k / sqrt(head_dim) and m the largest s, over the
entries of a row in the order of its positions: that order alone decides how its sums are rounded,
not where entries lie nor which other rows there are. All in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from llvmlite import ir

from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import F32, FLOATS, I32, I64, LANES, Emitter, Value
from kernels.cpu.exp import emit_exp
from kernels.cpu.machine import vector_lanes
from kernels.cpu.team import PART_KINDS, emit_parts

FIELDS = (
    "q", "q_stride", "memory", "plane_stride", "out", "out_stride", "scores", "capacity",
    "index", "ranges", "rows", "kv_heads", "team",
)  # fmt: skip
_KEY_VECTORS = 2  # of eight columns of one or two keys, which a query is multiplied with at once
_SUMS = {8: 12, 16: 24}  # vectors, by lanes, that the sums of values are at most, for the registers
SEGMENTS = 2  # pieces of ``index`` that a row's entries are: what all rows see, and its own


def compiled_attention(head_dim: int, group: int, lanes: int | None = None) -> Compiled:
    """``attend``: a function of a job of `FIELDS`; ``head_dim`` is a multiple of 8.

    q: float32 rows of kv_heads * group heads, ``q_stride`` numbers apart; out: likewise. memory:
    float32 planes of tokens, keys of all heads, then values, ``plane_stride`` numbers apart. index:
    int32 slots; ranges: int64 [rows, 2, 2], first place and number of two pieces of ``index``.
    scores: scratch for float32 [threads, group, capacity]; capacity: at least 8 more than the
    entries that any row sees. team: the address of who shares the work, in as many threads.
    ``lanes``: of vectors, 8 or 16; None: those of this processor. Results are the same.
    """
    lanes = lanes or vector_lanes()
    return _compiled(head_dim, group, lanes if head_dim % lanes == 0 else LANES)


@cache
def _compiled(head_dim: int, group: int, lanes: int) -> Compiled:
    module = ir.Module("attention")
    emit = Emitter(module, "work", FIELDS, PART_KINDS)
    _, part, thread = emit.arguments
    kv_heads = emit.number("kv_heads")
    row, head = emit.build.sdiv(part, kv_heads), emit.build.srem(part, kv_heads)
    _Item(emit, (head_dim, group, lanes), row, head, thread).attend()
    work = emit.finish()
    entry = Emitter(module, "attend", FIELDS)
    emit_parts(entry, work, entry.mul(entry.number("rows"), entry.number("kv_heads")))
    entry.finish()
    return Compiled(module)


class _Item:
    """The queries of one row that share keys and values."""

    def __init__(
        self, emit: Emitter, shape: tuple[int, int, int], row: Value, head: Value, thread: Value
    ) -> None:
        """``shape``: numbers of a head, queries, and lanes of a vector."""
        self._emit = emit
        head_dim, group, _ = self._width, self._group, self._lanes = shape
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
        totals = [self._weigh(query, count) for query in range(self._group)]
        at_once = max(1, _SUMS[self._lanes] * self._lanes // self._width)
        for first in range(0, self._group, at_once):
            queries = range(first, min(first + at_once, self._group))
            self._add_up(queries, totals[first : queries.stop])

    def _score(self) -> Value:
        """Write the scores of all queries; returns how many entries there are."""
        emit = self._emit

        def take(place: Value, slots: list[Value]) -> None:
            keys = [emit.at(self._keys, emit.mul(slot, self._width), F32) for slot in slots]
            for query, scores in enumerate(self._products(keys)):
                emit.store(scores, self._scores, self._score_at(query, place))

        self._visit(self._lanes // LANES * _KEY_VECTORS, take)
        count = emit.whole(0)
        for segment in range(SEGMENTS):
            count = emit.add(count, emit.load(I64, self._ranges, 2 * segment + 1))
        return count

    def _products(self, keys: list[Value]) -> list[Value]:
        """Of each query with all keys, scaled; each as with one key, eight columns at a time."""
        emit = self._emit
        together = min(len(keys), self._lanes // LANES)
        pieces = [keys[first : first + together] for first in range(0, len(keys), together)]
        nothing = emit.floats(0.0, ir.VectorType(F32, LANES * together))
        sums = [[nothing for _ in pieces] for _ in range(self._group)]
        for column in range(0, self._width, LANES):
            parts = [
                self._joined([emit.load(FLOATS, key, column) for key in piece]) for piece in pieces
            ]
            for query, totals in enumerate(sums):
                eight = emit.load(FLOATS, self._q, query * self._width + column)
                q = self._joined([eight] * together)
                totals[:] = [emit.fma(part, q, x) for part, x in zip(parts, totals, strict=True)]
        found = [_totals(emit, totals) for totals in sums]
        scale = emit.floats(self._width**-0.5, found[0].type)
        return [emit.build.fmul(scores, scale) for scores in found]

    def _score_at(self, query: int, place: Value) -> Value:
        return self._emit.add(self._emit.mul(self._capacity, query), place)

    def _joined(self, eights: list[Value]) -> Value:
        """One vector of one or two."""
        if len(eights) == 1:
            return eights[0]
        return self._emit.shuffled(eights[0], range(2 * LANES), eights[1])

    def _weigh(self, query: int, count: Value) -> Value:
        """e^(s - m) in the place of scores; returns their sum."""
        emit, build = self._emit, self._emit.build
        scores = emit.at(self._scores, emit.mul(self._capacity, query), F32)
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

    def _add_up(self, queries: range, totals: list[Value]) -> None:
        """The sums of values of some queries, which each value is read for once."""
        emit, build, lanes = self._emit, self._emit.build, self._lanes
        kind = ir.VectorType(F32, lanes)
        columns = range(0, self._width, lanes)
        sums = [[emit.variable(emit.floats(0.0, kind)) for _ in columns] for _ in queries]

        def take(place: Value, slots: list[Value]) -> None:
            value = emit.at(self._values, emit.mul(slots[0], self._width), F32)
            parts = [emit.load(kind, value, column) for column in columns]
            for query, held in zip(queries, sums, strict=True):
                weight = emit.load(F32, self._scores, self._score_at(query, place))
                for part, x in zip(parts, held, strict=True):
                    x.set(emit.fma(part, emit.spread(weight, lanes), x.value))

        self._visit(1, take)
        for query, held, total in zip(queries, sums, totals, strict=True):
            inverse = emit.spread(build.fdiv(emit.floats(1.0, F32), total), lanes)
            for column, x in zip(columns, held, strict=True):
                emit.store(build.fmul(x.value, inverse), self._out, query * self._width + column)

    def _visit(self, together: int, take: Callable[[Value, list[Value]], None]) -> None:
        """``take`` each entry's number and slot, in the order of positions.

        It is emitted for ``together`` entries that follow each other, by the number of the first,
        and for one.
        """
        emit = self._emit
        index, place = emit.address("index"), emit.variable(emit.whole(0))

        def emit_loop(first: Value, start: Value | int, stop: Value, step: int) -> None:
            with emit.loop(stop, start, step) as number:
                here = emit.add(first, number)
                slots = [emit.load(I32, index, emit.add(here, n)) for n in range(step)]
                take(place.value, [emit.build.sext(slot, I64) for slot in slots])
                place.set(emit.add(place.value, step))

        with emit.loop(emit.whole(SEGMENTS)) as segment:
            first = emit.load(I64, self._ranges, emit.mul(segment, 2))
            count = emit.load(I64, self._ranges, emit.add(emit.mul(segment, 2), 1))
            whole = emit.build.sub(count, emit.build.srem(count, emit.whole(together)))
            emit_loop(first, 0, whole, together)
            emit_loop(first, whole, count, 1)


def _totals(emit: Emitter, vectors: list[Value]) -> Value:
    """Of each eight lanes their sum: halves, quarters, then the last two, as `Emitter.total` does.

    ``vectors``: a power of two.
    """
    width = LANES
    while width > 1:
        pairs = [vectors[first : first + 2] for first in range(0, len(vectors), 2)]
        vectors = [_halves_added(emit, pair, width) for pair in pairs]
        width //= 2
    return vectors[0]


def _halves_added(emit: Emitter, pair: list[Value], width: int) -> Value:
    """In each piece of ``width`` lanes of one or two vectors, the first half plus the second."""
    lanes = sum(vector.type.count for vector in pair)
    low = [lane for lane in range(lanes) if lane % width < width // 2]
    high = [lane + width // 2 for lane in low]
    return emit.build.fadd(*(emit.shuffled(pair[0], part, *pair[1:]) for part in (low, high)))
