"""What a step costs: milliseconds as a function of its rows, profiled and then observed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

_MEMORY = 0.1  # weight of the newest step


@dataclass(frozen=True, slots=True)
class StepCost:
    """Piecewise linear in the number of rows; flat below the first point, last slope above.

    extra: what real steps took beyond the profile, on average: time between steps, longer
        contexts, more sequences. It does not depend on the rows of one more guess.
    """

    rows: tuple[int, ...]
    milliseconds: tuple[float, ...]
    extra: float = 0.0

    @classmethod
    def from_profile(cls, points: Iterable[tuple[int, float]]) -> StepCost:
        """From (rows, milliseconds) points; noise that makes more rows cheaper is ironed out."""
        ordered = sorted(points)
        costs: list[float] = []
        for _, cost in ordered:
            costs.append(max(cost, costs[-1]) if costs else cost)
        return cls(tuple(rows for rows, _ in ordered), tuple(costs))

    def observed(self, rows: int, milliseconds: float) -> StepCost:
        """After a step of so many rows began that long after the one before it."""
        lowest = -0.5 * self.milliseconds[0]  # a busy start must not make steps free
        extra = self.extra + _MEMORY * (milliseconds - self(rows))
        return replace(self, extra=max(lowest, extra))

    def __call__(self, rows: int) -> float:
        return self._profiled(rows) + self.extra

    def _profiled(self, rows: int) -> float:
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self.milliseconds[0]
        left = min(bisect_right(self.rows, rows), len(self.rows) - 1) - 1
        x0, x1 = self.rows[left], self.rows[left + 1]
        y0, y1 = self.milliseconds[left], self.milliseconds[left + 1]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)
