"""A straight line through what was seen lately."""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 0.1  # weight of the newest point
_STIFFNESS = 4.0  # a spread of x from which a slope can be half believed


@dataclass(frozen=True, slots=True)
class Trend:
    """Exponentially weighted least squares of y over x; replaced, never changed.

    Points that lie close together in x say little about the slope, which then stays near 0.
    """

    x: float = 0.0
    y: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0
    empty: bool = True

    @property
    def slope(self) -> float:
        return self.covariance / (self.variance + _STIFFNESS)

    def observed(self, x: float, y: float) -> Trend:
        if self.empty:
            return Trend(x, _MEMORY * y, empty=False)
        dx, dy = x - self.x, y - self.y
        return Trend(
            self.x + _MEMORY * dx,
            self.y + _MEMORY * dy,
            (1 - _MEMORY) * (self.variance + _MEMORY * dx * dx),
            (1 - _MEMORY) * (self.covariance + _MEMORY * dx * dy),
            empty=False,
        )
