"""What became of guesses: by depth, and by how likely they were said to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BINS = 10  # of equal width, of predicted confidence


@dataclass(slots=True)
class Bin:
    """Guesses of about one predicted confidence."""

    count: int = 0
    accepted: int = 0
    predicted: float = 0.0  # sum of confidences


@dataclass(slots=True)
class GuessCounts:
    """Guesses of one source that the target judged: their parents were accepted."""

    verified: list[int] = field(default_factory=list)  # by depth, from 1
    accepted: list[int] = field(default_factory=list)
    bins: list[Bin] = field(default_factory=lambda: [Bin() for _ in range(BINS)])

    def judge(self, depth: int, confidence: float, accepted: bool) -> None:
        """Take in one guess."""
        for column in (self.verified, self.accepted):
            column.extend([0] * (depth - len(column)))
        self.verified[depth - 1] += 1
        self.accepted[depth - 1] += accepted
        place = self.bins[min(int(confidence * BINS), BINS - 1)]
        place.count += 1
        place.accepted += accepted
        place.predicted += confidence

    def add(self, other: GuessCounts) -> None:
        for mine, theirs in ((self.verified, other.verified), (self.accepted, other.accepted)):
            mine.extend([0] * (len(theirs) - len(mine)))
            for index, count in enumerate(theirs):
                mine[index] += count
        for place, more in zip(self.bins, other.bins, strict=True):
            place.count += more.count
            place.accepted += more.accepted
            place.predicted += more.predicted

    def content(self) -> dict[str, Any]:
        """As a report shows it; means are 0 where nothing was seen."""
        return {
            "verified": self.verified,
            "accepted": self.accepted,
            "bins": [
                {
                    "count": place.count,
                    "predicted": _share(place.predicted, place.count),
                    "accepted": _share(place.accepted, place.count),
                }
                for place in self.bins
            ],
        }


def _share(part: float, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
