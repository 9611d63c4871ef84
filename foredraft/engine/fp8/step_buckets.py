"""Which shapes steps on the device have: as few as can be, for each is a graph of its own."""

from __future__ import annotations

from collections.abc import Iterator

from foredraft.engine.fp8.device_step import StepBucket
from foredraft.engine.fp8.inputs import next_power

_ENOUGH = 7 / 8  # of the nodes that a step may have: for the rest rows are not doubled


class StepBuckets:
    """Powers of two of slots and rows; what the slots leave of the rows, nodes may take.

    slots: sequences at once. nodes: of a step, at most.
    """

    def __init__(self, slots: int, nodes: int) -> None:
        self._nodes = nodes
        self._rows = {1 << n: self._rows_of(1 << n) for n in range(slots.bit_length())}

    def __iter__(self) -> Iterator[StepBucket]:
        """All of them that filter nothing and keep no logits."""
        for slots, widths in self._rows.items():
            for rows in widths:
                yield self._bucket(slots, rows)

    def smallest(
        self, slots: int, nodes: int, *, filters: bool = False, logits: bool = False
    ) -> StepBucket:
        """The one for the first ``slots`` slots and so many nodes, or as many as there may be."""
        widths = self._rows[next_power(slots)]
        fits = (rows for rows in widths if rows - next_power(slots) >= nodes)
        return self._bucket(next_power(slots), next(fits, widths[-1]), filters, logits)

    def _bucket(
        self, slots: int, rows: int, filters: bool = False, logits: bool = False
    ) -> StepBucket:
        return StepBucket(min(rows - slots, self._nodes), filters, slots, rows, logits)

    def _rows_of(self, slots: int) -> list[int]:
        rows = [slots]
        while rows[-1] - slots < _ENOUGH * self._nodes:
            rows.append(2 * rows[-1])
        return rows
