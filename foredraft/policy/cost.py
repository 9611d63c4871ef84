"""What a step costs: milliseconds as a function of its rows, profiled and then observed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from foredraft.policy.trend import Trend

_MEMORY = 0.1  # weight of the newest hold
_NEXT_ROWS = 8


@dataclass(frozen=True, slots=True)
class StepCost:
    """Piecewise linear in the number of rows; flat below the first point, last slope above.

    beyond: what real steps take beyond the profile, by rows: time between steps, longer contexts,
        sampling.
    held_ms: for how long steps are held, on average. It does not depend on the rows.
    """

    rows: tuple[int, ...]
    milliseconds: tuple[float, ...]
    beyond: Trend = field(default_factory=Trend)
    held_ms: float = 0.0

    @classmethod
    def from_profile(cls, points: Iterable[tuple[int, float]]) -> StepCost:
        """From (rows, milliseconds) points; noise that makes more rows cheaper is ironed out."""
        ordered = sorted(points)
        costs: list[float] = []
        for _, cost in ordered:
            costs.append(max(cost, costs[-1]) if costs else cost)
        return cls(tuple(rows for rows, _ in ordered), tuple(costs))

    def observed(self, rows: int, milliseconds: float, held_ms: float = 0.0) -> StepCost:
        """After a step of so many rows ended that long after the one before it.

        Args:
            held_ms: for so long of that time it was held.
        """
        beyond = self.beyond.observed(rows, milliseconds - held_ms - self._profiled(rows))
        return replace(
            self, beyond=beyond, held_ms=self.held_ms + _MEMORY * (held_ms - self.held_ms)
        )

    def __call__(self, rows: int) -> float:
        """What steps take; a busy start, or noise, must not make rows free."""
        profiled = self._profiled(rows)
        beyond = self.beyond.y + max(0.0, self.beyond.slope) * (rows - self.beyond.x)
        return max(profiled + beyond, 0.5 * profiled) + self.held_ms

    def per_row(self, rows: int) -> float:
        """Milliseconds that one more row adds to a step of so many, on average over the next few.

        Over the next few, because products are padded: single rows are free or dear by turns.
        """
        return max(0.0, self(rows + _NEXT_ROWS) - self(rows)) / _NEXT_ROWS

    def _profiled(self, rows: int) -> float:
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self.milliseconds[0]
        left = min(bisect_right(self.rows, rows), len(self.rows) - 1) - 1
        x0, x1 = self.rows[left], self.rows[left + 1]
        y0, y1 = self.milliseconds[left], self.milliseconds[left + 1]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)
