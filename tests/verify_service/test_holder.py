"""Holding a step back: what ends a hold, and what is learned from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from foredraft.params import Schedule
from foredraft.wire.messages import VerifyBudget
from verify_service.holder import Holder

SERIAL = VerifyBudget(8, max_hold_us=20_000, drafting=True, schedule=Schedule.SERIAL)
PLAIN = replace(SERIAL, max_nodes=0, schedule=Schedule.FREE)
STEP_US = 1_000_000.0


@dataclass
class Sequence:
    """As much of one as a holder looks at."""

    key: tuple[int, int] = (0, 1)
    promised: float = 0.0
    drafted: bool = False

    @property
    def tree(self) -> Sequence:
        return self

    def promise(self) -> float:
        return self.promised

    def awaits_drafts(self) -> bool:
        return not self.drafted


class Scheduler:
    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence

    def ready(self) -> list[Sequence]:
        return [self.sequence]


def holder_of(sequence: Sequence, arrivals: list[Callable[[], None]]) -> Holder:
    """A holder for which these things happen one after the other, and then nothing."""
    left: Iterator[Callable[[], None]] = iter(arrivals)

    def take_within(seconds: float) -> bool:
        happen = next(left, None)
        if happen is not None:
            happen()
        return happen is not None

    return Holder(Scheduler(sequence), take_within)


def hold(holder: Holder, budget: VerifyBudget = SERIAL) -> frozenset[tuple[int, int]]:
    return holder.hold(budget, STEP_US, Sequence.awaits_drafts).waited_for


def test_a_serial_hold_ends_with_complete_guesses() -> None:
    sequence = Sequence()

    def some() -> None:
        sequence.promised = 0.5

    def all_of_them() -> None:
        sequence.drafted = True

    late: list[str] = []
    holder = holder_of(sequence, [some, some, all_of_them, lambda: late.append("taken")])
    assert hold(holder) == {sequence.key} and not late


@pytest.mark.parametrize("budget", [PLAIN, replace(SERIAL, schedule=Schedule.HELD)])
def test_a_new_budget_ends_a_hold(budget: VerifyBudget) -> None:
    """The drafter may have been told to rest: to wait for it would be to wait in vain."""
    late: list[str] = []
    holders: list[Holder] = []
    arrivals = [lambda: holders[0].told(SERIAL, budget), lambda: late.append("taken")]
    holders.append(holder_of(Sequence(), arrivals))
    assert hold(holders[0]) and not late
    assert hold(holders[0]) and hold(holders[0])  # it does not count as one in vain
    assert not hold(holders[0])


def test_two_holds_in_vain_end_the_holding_until_another_schedule_is_asked_for() -> None:
    holder = holder_of(Sequence(), [])
    assert hold(holder) and hold(holder) and not hold(holder)
    holder.told(PLAIN, SERIAL)
    assert hold(holder)
