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
    firsts, lasts: the slot at which a row's sequence begins, and from there on the last one in use.
    seen: so many slots from its sequence's first on are seen by a row.
    lines: slots of the sequence that it sees behind them; none for a committed token.
    looked: places of the rows whose guesses are wanted, and how their tokens are drawn.
    """

    tokens: list[int]
    positions: list[int]
    slots: list[int]
    firsts: list[int]
    seen: list[int]
    lasts: list[int]
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
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    firsts: list[int] = []
    seen: list[int] = []
    lasts: list[int] = []
    lines: list[Sequence[int]] = []
    pieces: list[Piece] = []
    looked: list[int] = []
    looks: list[SampledRow | None] = []
    for one in batch:
        start, first = len(tokens), first_slot(one.blocks)
        used = known = one.fed + len(one.committed)
        tokens += one.committed
        positions += range(one.fed, known)
        slots += range(first + one.fed, first + known)
        seen += range(one.fed + 1, known + 1)
        lines += [()] * len(one.committed)
        if one.nodes:
            tokens += one.nodes
            positions += [known - 1 + len(line) for line in one.lines]
            slots += [first + line[-1] for line in one.lines]
            seen += [known] * len(one.nodes)
            lines += one.lines
            used = max(known, *[max(line) + 1 for line in one.lines])
        end = len(tokens)
        firsts += [first] * (end - start)
        lasts += [used - 1] * (end - start)
        pieces.append(Piece(slice(start, end), first, used))
        looked += range(end - len(one.looks), end)
        looks += one.looks
    return Rows(tokens, positions, slots, firsts, seen, lasts, lines, pieces, looked, looks)
