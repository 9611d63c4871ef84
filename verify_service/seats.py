"""Which slot of the device each sequence has: the first ones, so that steps stay small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from verify_service.sequence import Guess, Key, VerifySequence


@dataclass(slots=True)
class Seat:
    """``told``: the device knows the sequence. ``unsent``: guesses that it does not know yet."""

    slot: int
    sequence: VerifySequence
    told: bool = False
    unsent: list[Guess] = field(default_factory=list)


class Seats:
    """Of all sequences that take part in steps."""

    def __init__(self) -> None:
        self._seats: dict[Key, Seat] = {}

    def find(self, sequence: VerifySequence) -> Seat | None:
        seat = self._seats.get(sequence.key)
        return seat if seat is not None and seat.sequence is sequence else None

    def sprawl(self, ready: Sequence[VerifySequence]) -> bool:
        """True if a smaller power of two of slots would hold ``ready``."""
        slots = [seat.slot for one in ready if (seat := self.find(one)) is not None]
        return bool(slots) and _width(max(slots) + 1) > _width(len(ready))

    def take(self, ready: Sequence[VerifySequence], *, move: bool) -> list[Seat]:
        """Seats of ``ready``, by slots; nobody else keeps one.

        Args:
            move: those that sprawl get other seats, of which nothing is told yet.
        """
        kept = [seat for one in ready if (seat := self.find(one)) is not None]
        if move and self.sprawl(ready):
            kept = [seat for seat in kept if seat.slot < _width(len(ready))]
        taken = {seat.slot for seat in kept}
        self._seats = {seat.sequence.key: seat for seat in kept}
        free = (slot for slot in range(len(ready)) if slot not in taken)
        for sequence in ready:
            if sequence.key not in self._seats:
                self._seats[sequence.key] = Seat(next(free), sequence)
        return sorted(self._seats.values(), key=lambda seat: seat.slot)

    def clear(self) -> None:
        self._seats = {}


def _width(count: int) -> int:
    """The least power of two that is not below ``count``."""
    return 1 << (count - 1).bit_length()
