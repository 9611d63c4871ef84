"""The few largest numbers of each lane, and where they were."""

from __future__ import annotations

from llvmlite import ir

from kernels.cpu.emitter import I8, I32, INTS, LANES, Emitter, Value

LOWEST = float("-inf")


class Largest:
    """Of vectors of eight that are offered one after another; of equal numbers the first stays.

    held: of every rank values and int32 numbers, largest first. What is NaN or -inf is not among
    them: where there are too few, the number is 0.
    """

    def __init__(self, emit: Emitter, count: int) -> None:
        self._emit = emit
        lowest, nothing = emit.floats(LOWEST), emit.ints(0)
        self.held = [(emit.variable(lowest), emit.variable(nothing)) for _ in range(count)]

    def offer(self, values: Value, first: Value) -> None:
        """Eight numbers from number ``first`` on, to be kept where they are larger than others."""
        emit, build = self._emit, self._emit.build
        larger = [build.fcmp_ordered(">", values, kept.value) for kept, _ in self.held]
        some = build.bitcast(larger[-1], I8)  # hardly ever
        with emit.when(build.icmp_signed("!=", some, ir.Constant(I8, 0))):
            number = emit.spread(build.trunc(first, I32))
            number = build.add(number, ir.Constant(INTS, list(range(LANES))))
            for rank in range(len(self.held) - 1, -1, -1):
                for mine, new in zip(range(2), (values, number), strict=True):
                    kept = self.held[rank][mine]
                    value = build.select(larger[rank], new, kept.value)
                    if rank:  # what it pushes down
                        above = self.held[rank - 1][mine].value
                        value = build.select(larger[rank - 1], above, value)
                    kept.set(value)
