"""The rows of one pass over many sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draft_service.engine.draft_engine import Extension
from draft_service.engine.memory import first_slot
from foredraft.engine.sampling import SampledRow

# Token; position; slot of its entry, counted over the whole memory; the slot at which its sequence
# begins; how many slots from there on it sees; the last one in use from there on.
Numbers = tuple[int, int, int, int, int, int]


class Piece(NamedTuple):
    """The rows of one sequence.

    first: the physical slot at which its memory begins.
    used: slots from there on that its rows may see.
    """

    rows: slice
    first: int
    used: int


@dataclass(frozen=True, slots=True)
class Rows:
    """In the order of the batch, committed tokens before nodes.

    lines: slots of its sequence that a row sees behind the first ones; none for a committed token.
    looked: places of the rows whose guesses are wanted, and how their tokens are drawn.
    """

    numbers: list[Numbers]
    lines: list[Sequence[int]]
    pieces: list[Piece]
    looked: list[int]
    looks: list[SampledRow | None]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def tokens(self) -> list[int]:
        return [row[0] for row in self.numbers]

    @property
    def positions(self) -> list[int]:
        return [row[1] for row in self.numbers]

    @property
    def slots(self) -> list[int]:
        return [row[2] for row in self.numbers]

    @property
    def seen(self) -> list[int]:
        return [row[4] for row in self.numbers]

    @property
    def reach(self) -> int:
        """Slots of the longest sequence."""
        return max([piece.used for piece in self.pieces])

    @property
    def deepest(self) -> int:
        """Slots of the longest line."""
        return max(map(len, self.lines))


def rows_of(batch: Sequence[Extension]) -> Rows:
    """Lay a batch out; it has at least one row."""
    numbers: list[Numbers] = []
    lines: list[Sequence[int]] = []
    pieces: list[Piece] = []
    looked: list[int] = []
    looks: list[SampledRow | None] = []
    for one in batch:
        start, first, committed = len(numbers), first_slot(one.blocks), one.committed
        used = known = one.fed + len(committed)
        if one.nodes:
            used = max(known, *[max(line) + 1 for line in one.lines])
        last = used - 1
        for position, token in enumerate(committed, one.fed):
            numbers.append((token, position, first + position, first, position + 1, last))
            lines.append(())
        for token, line in zip(one.nodes, one.lines, strict=True):
            numbers.append((token, known - 1 + len(line), first + line[-1], first, known, last))
            lines.append(line)
        end = len(numbers)
        pieces.append(Piece(slice(start, end), first, used))
        looked += range(end - len(one.looks), end)
        looks += one.looks
    return Rows(numbers, lines, pieces, looked, looks)
