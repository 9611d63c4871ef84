"""What a step costs: milliseconds as a function of its rows, profiled at start-up."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCost:
    """Piecewise linear in the number of rows; flat below the first point, last slope above."""

    rows: tuple[int, ...]
    milliseconds: tuple[float, ...]

    @classmethod
    def from_profile(cls, points: Iterable[tuple[int, float]]) -> StepCost:
        """From (rows, milliseconds) points; noise that makes more rows cheaper is ironed out."""
        ordered = sorted(points)
        costs: list[float] = []
        for _, cost in ordered:
            costs.append(max(cost, costs[-1]) if costs else cost)
        return cls(tuple(rows for rows, _ in ordered), tuple(costs))

    def __call__(self, rows: int) -> float:
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self.milliseconds[0]
        left = min(bisect_right(self.rows, rows), len(self.rows) - 1) - 1
        x0, x1 = self.rows[left], self.rows[left + 1]
        y0, y1 = self.milliseconds[left], self.milliseconds[left + 1]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)
