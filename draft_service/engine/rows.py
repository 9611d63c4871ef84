"""The rows of one pass over many sequences, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.engine.draft_engine import Extension
from draft_service.engine.memory import first_slot
from foredraft.engine.sampling import SampledRow


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one sequence.

    first: the physical slot at which its memory begins.
    used: slots from there on that its rows may see.
    """

    rows: slice
    first: int
    used: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of equal length, in the order of the batch, committed tokens before nodes.

    slots: where the entry of a row goes, counted over the whole memory.
    seen: so many slots from its sequence's first on are seen by a row.
    lines: slots of the sequence that it sees behind them; none for a committed token.
    looked: places of the rows whose guesses are wanted, and how their tokens are drawn.
    """

    tokens: list[int]
    positions: list[int]
    slots: list[int]
    seen: list[int]
    lines: list[Sequence[int]]
    pieces: list[Piece]
    looked: list[int]
    looks: list[SampledRow | None]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def reach(self) -> int:
        """Slots of the longest sequence."""
        return max(piece.used for piece in self.pieces)

    @property
    def deepest(self) -> int:
        """Slots of the longest line."""
        return max(map(len, self.lines))


def rows_of(batch: Sequence[Extension]) -> Rows:
    """Lay a batch out; it has at least one row."""
    rows = Rows([], [], [], [], [], [], [], [])
    for one in batch:
        start, first = len(rows), first_slot(one.blocks)
        known = one.fed + len(one.committed)
        rows.tokens.extend(one.committed)
        rows.tokens.extend(one.nodes)
        rows.positions.extend(range(one.fed, known))
        rows.positions.extend([known - 1 + len(line) for line in one.lines])
        rows.slots.extend(range(first + one.fed, first + known))
        rows.slots.extend([first + line[-1] for line in one.lines])
        rows.seen.extend(range(one.fed + 1, known + 1))
        rows.seen.extend([known] * len(one.nodes))
        rows.lines.extend([()] * len(one.committed))
        rows.lines.extend(one.lines)
        end = len(rows)
        used = max([known, *(max(line) + 1 for line in one.lines)])
        rows.pieces.append(Piece(slice(start, end), first, used))
        rows.looked.extend(range(end - len(one.looks), end))
        rows.looks.extend(one.looks)
    return rows
