"""What a pass of the draft model costs: milliseconds as a straight line over its rows, as seen."""

from __future__ import annotations

from dataclasses import dataclass, field

_MEMORY = 0.05  # weight of the newest pass
_STIFFNESS = 1.0  # a variance of rows from which a slope can be half believed
_OUTLIER = 4.0  # times what was expected is the most that a pass counts: others use the cores, too


@dataclass(frozen=True, slots=True)
class PassCost:
    """Exponentially weighted least squares; replaced, never changed.

    The means over the first passes weigh all of them alike. Passes of equal width say nothing of
    what a row costs: then rows cost nothing.

    per_row: milliseconds that one more row adds; no more than a row's share of the mean pass.
    """

    passes: int = 0
    rows: float = 0.0
    milliseconds: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0
    per_row: float = field(init=False)

    def __post_init__(self) -> None:
        slope = self.covariance / (self.variance + _STIFFNESS)
        per_row = max(0.0, min(slope, self.milliseconds / max(self.rows, 1.0)))
        object.__setattr__(self, "per_row", per_row)

    def observed(self, rows: int, milliseconds: float) -> PassCost:
        """After a pass of so many rows took so long."""
        if self.passes:
            milliseconds = min(milliseconds, _OUTLIER * self(rows))
        weight = max(_MEMORY, 1.0 / (self.passes + 1))
        dx, dy = rows - self.rows, milliseconds - self.milliseconds
        return PassCost(
            self.passes + 1,
            self.rows + weight * dx,
            self.milliseconds + weight * dy,
            (1.0 - weight) * (self.variance + weight * dx * dx),
            (1.0 - weight) * (self.covariance + weight * dx * dy),
        )

    def __call__(self, rows: int) -> float:
        """What a pass takes; 0 before one was seen."""
        return self.milliseconds + self.per_row * (rows - self.rows)
