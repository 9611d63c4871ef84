"""Slots of the device: the first ones, and as few as can be."""

from __future__ import annotations

from foredraft.params import SamplingParams
from foredraft.wire.messages import Limits, ModelInfo, OpenSequence
from verify_service.seats import Seats
from verify_service.sequence import VerifySequence

INFO = ModelInfo("model", "hash", 64, 256, (2,))


def sequences(count: int) -> list[VerifySequence]:
    opened = (OpenSequence(index, 1, (5,), SamplingParams()) for index in range(count))
    return [VerifySequence.open(0, one, Limits(8, 8, 8), INFO) for one in opened]


def slots(seats: Seats, ready: list[VerifySequence], *, move: bool) -> dict[int, int]:
    taken = seats.take(ready, move=move)
    assert [seat.slot for seat in taken] == sorted({seat.slot for seat in taken})
    return {seat.sequence.opened.seq_id: seat.slot for seat in taken}


def test_who_leaves_gives_way_to_who_comes() -> None:
    seats, all_of = Seats(), sequences(4)
    assert slots(seats, all_of[:3], move=False) == {0: 0, 1: 1, 2: 2}
    seats.take(all_of[:3], move=False)[2].told = True
    assert slots(seats, [all_of[2], all_of[3]], move=False) == {2: 2, 3: 0}
    seat = seats.find(all_of[2])
    assert seat is not None and seat.told
    assert seats.find(all_of[0]) is None


def test_another_sequence_of_that_name_is_another() -> None:
    seats, (first, again) = Seats(), (sequences(1)[0], sequences(1)[0])
    seats.take([first], move=False)[0].told = True
    assert seats.find(again) is None
    assert not seats.take([again], move=False)[0].told


def test_they_move_together_once_half_of_the_slots_would_do() -> None:
    seats, all_of = Seats(), sequences(6)
    seats.take(all_of, move=False)
    late = all_of[3:]
    assert not seats.sprawl(all_of[1:])
    assert seats.sprawl(late)
    assert slots(seats, late, move=False) == {3: 3, 4: 4, 5: 5}
    assert slots(seats, late, move=True) == {3: 3, 4: 0, 5: 1}
    assert [seat.told for seat in seats.take(late, move=True)] == [False] * 3
    assert not seats.sprawl(late)
