"""Writes LLVM functions: vectors of float32, loops, and what else kernels are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

LANES = 8  # of a vector, where nothing else is said

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
POINTER = ir.PointerType()
FLOATS = ir.VectorType(F32, LANES)
INTS = ir.VectorType(I32, LANES)

Value = Any  # an ir.Value: llvmlite has no types


class Emitter:
    """One function without a result; the first argument of most is a job.

    A job is an array of int64, numbers and addresses, that ``fields`` are the names of. What is
    emitted is computed as it is written: no operation is reordered, none but ``fma`` contracted.
    ``lanes``: of 32 bits, which the function's vectors have.
    """

    def __init__(
        self,
        module: ir.Module,
        name: str,
        fields: Sequence[str] = (),
        kinds: Sequence[Any] = (POINTER,),
        lanes: int = LANES,
    ) -> None:
        self.module = module
        self.lanes = lanes
        self.float_vector, self.int_vector = (ir.VectorType(kind, lanes) for kind in (F32, I32))
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
        self.arguments = self.function.args
        self.job = self.arguments[0]
        entry = self.function.append_basic_block("entry")
        self._variables = ir.IRBuilder(entry)
        self._body = self.function.append_basic_block("body")
        self.build = ir.IRBuilder(self._body)
        self._fields = {field: place for place, field in enumerate(fields)}

    def number(self, field: str) -> Value:
        """An int64 of the job."""
        return self.load(I64, self.job, self._fields[field])

    def address(self, field: str) -> Value:
        return self.build.inttoptr(self.number(field), POINTER)

    def real(self, field: str) -> Value:
        """A float32 of the job."""
        place = self.at(self.job, self._fields[field], I64)
        return self.load(F32, place, 0)

    def finish(self) -> ir.Function:
        self._variables.branch(self._body)
        self.build.ret_void()
        return self.function

    # Memory

    def at(self, base: Value, index: Value | int, kind: Any = I8) -> Value:
        """The address of element ``index`` of an array of ``kind``."""
        place = index if isinstance(index, ir.Value) else ir.Constant(I64, index)
        return self.build.gep(base, [place], source_etype=kind)

    def load(self, kind: Any, base: Value, index: Value | int = 0) -> Value:
        """A number, or a vector that begins at element ``index``; any alignment of vectors."""
        element = _element(kind)
        return self.build.load(self.at(base, index, element), typ=kind, align=_size(element))

    def store(self, value: Value, base: Value, index: Value | int = 0) -> None:
        element = _element(value.type)
        self.build.store(value, self.at(base, index, element), align=_size(element))

    def prefetch(self, base: Value, index: int) -> None:
        """Ask for the byte there; it need not exist."""
        name, kinds = "llvm.prefetch.p0", (POINTER, I32, I32, I32)
        function = self.external(name, ir.VoidType(), *kinds)
        to_read, near, data = (ir.Constant(I32, value) for value in (0, 3, 1))
        self.call(function, self.at(base, index), to_read, near, data)

    def variable(self, initial: Value) -> Variable:
        """What a loop changes; it lives in a register where there is one."""
        return Variable(self, self._variables.alloca(initial.type), initial)

    # Control

    @contextmanager
    def loop(self, stop: Value, start: Value | int = 0, step: int = 1) -> Iterator[Value]:
        """Counts from ``start`` while below ``stop``; yields the count."""
        first = start if isinstance(start, ir.Value) else ir.Constant(I64, start)
        count = self.variable(first)
        test, body, after = (self.function.append_basic_block() for _ in range(3))
        self.build.branch(test)
        self.build.position_at_end(test)
        self.build.cbranch(self.build.icmp_signed("<", count.value, stop), body, after)
        self.build.position_at_end(body)
        now = count.value
        yield now
        count.set(self.build.add(now, ir.Constant(I64, step)))
        self.build.branch(test)
        self.build.position_at_end(after)

    @contextmanager
    def forever(self) -> Iterator[Callable[[Value], None]]:
        """A loop that ends where what it yields is called with a condition that is true."""
        body, after = (self.function.append_basic_block() for _ in range(2))
        self.build.branch(body)
        self.build.position_at_end(body)

        def leave(condition: Value) -> None:
            go_on = self.function.append_basic_block()
            self.build.cbranch(condition, after, go_on)
            self.build.position_at_end(go_on)

        yield leave
        self.build.branch(body)
        self.build.position_at_end(after)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.build.if_then(condition):
            yield

    def call(self, function: ir.Function, *arguments: Value) -> Value:
        return self.build.call(function, arguments)

    def external(self, name: str, result: Any, *kinds: Any) -> ir.Function:
        """A function of a library or of the processor."""
        known = self.module.globals.get(name)
        return known or ir.Function(self.module, ir.FunctionType(result, kinds), name)

    # Integers

    def whole(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def ints(self, value: int) -> Value:
        """A constant of 32 bits in every lane."""
        return ir.Constant(self.int_vector, [value] * self.lanes)

    def add(self, left: Value, right: Value | int) -> Value:
        return self.build.add(left, self._like(left, right))

    def mul(self, left: Value, right: Value | int) -> Value:
        return self.build.mul(left, self._like(left, right))

    def least(self, left: Value, right: Value) -> Value:
        return self.build.select(self.build.icmp_signed("<", left, right), left, right)

    # Floats

    def floats(self, value: float, kind: Any = None) -> Value:
        """A constant in every lane; ``kind`` is another type than the function's vectors."""
        kind = kind or self.float_vector
        lanes = getattr(kind, "count", None)
        return ir.Constant(kind, value if lanes is None else [value] * lanes)

    def spread(self, value: Value, lanes: int | None = None) -> Value:
        """A number in every lane."""
        lanes = lanes or self.lanes
        nothing = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        first = self.build.insert_element(nothing, value, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
        return self.build.shuffle_vector(first, nothing, zeros)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self._intrinsic("llvm.fma", a, b, c)

    def sqrt(self, x: Value) -> Value:
        return self._intrinsic("llvm.sqrt", x)

    def total(self, vector: Value) -> Value:
        """Sum of all lanes: halves, quarters, then the last two."""
        return self.fold(vector, self.build.fadd)

    def fold(self, vector: Value, join: Any) -> Value:
        """All lanes joined in pairs that lie half a vector apart."""
        lanes = vector.type.count
        while lanes > 1:
            lanes //= 2
            low, high = (self._part(vector, start, lanes) for start in (0, lanes))
            vector = join(low, high)
        return self.build.extract_element(vector, ir.Constant(I32, 0))

    def shuffled(self, vector: Value, places: Sequence[int], behind: Value | None = None) -> Value:
        """The lanes at ``places`` of ``vector`` and what is ``behind`` it."""
        order = ir.Constant(ir.VectorType(I32, len(places)), list(places))
        behind = behind or ir.Constant(vector.type, ir.Undefined)
        return self.build.shuffle_vector(vector, behind, order)

    def larger(self, left: Value, right: Value) -> Value:
        """Of floats that are numbers."""
        return self.build.select(self.build.fcmp_ordered(">", left, right), left, right)

    def _part(self, vector: Value, start: int, lanes: int) -> Value:
        return self.shuffled(vector, range(start, start + lanes))

    def _intrinsic(self, name: str, *values: Value) -> Value:
        kind = values[0].type
        suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
        function = self.external(f"{name}.{suffix}", kind, *(value.type for value in values))
        return self.call(function, *values)

    @staticmethod
    def _like(left: Value, right: Value | int) -> Value:
        return right if isinstance(right, ir.Value) else ir.Constant(left.type, right)


class Variable:
    """A value that may change."""

    def __init__(self, emitter: Emitter, place: Value, initial: Value) -> None:
        self._build, self._place = emitter.build, place
        self.set(initial)

    @property
    def value(self) -> Value:
        return self._build.load(self._place)

    def set(self, value: Value) -> None:
        self._build.store(value, self._place)


def _element(kind: Any) -> Any:
    return kind.element if isinstance(kind, ir.VectorType) else kind


def _size(kind: Any) -> int:
    """Bytes."""
    return {"half": 2, "float": 4}.get(str(kind)) or int(kind.width) // 8
