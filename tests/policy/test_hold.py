"""Holding: as long as it pays, seldom where it does not, again where it pays once more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foredraft.params import Schedule
from foredraft.policy.hold import HoldState, is_rich, patience_us
from foredraft.wire.messages import VerifyBudget

STEP_US = 30_000.0
HELD = VerifyBudget(64, max_hold_us=20_000, drafting=True, schedule=Schedule.HELD)


def run(state: HoldState, steps: int, answer_us: float, *, right: bool) -> tuple[HoldState, float]:
    """Steps of one sequence that always lacks guesses; returns the time spent holding too."""
    spent = 0.0
    for _ in range(steps):
        limit = state.limit_us(HELD, STEP_US)
        if limit > 0:
            waited = min(limit, answer_us)
            spent += waited
            state = state.held(waited, in_vain=answer_us > limit)
        saved = limit > 0 and answer_us <= limit and right
        state = state.stepped(held=limit > 0, saved=int(saved), sequences=1)
    return state, spent


def test_good_guesses_are_always_waited_for() -> None:
    state, spent = run(HoldState(), 200, answer_us=3_000, right=True)
    assert spent == 200 * 3_000
    assert state.limit_us(HELD, STEP_US) == HELD.max_hold_us


@pytest.mark.parametrize("answer_us", [3_000.0, 50_000.0])
def test_useless_or_late_guesses_cost_next_to_nothing(answer_us: float) -> None:
    state, _ = run(HoldState(), 60, answer_us, right=False)
    _, spent = run(state, 1000, answer_us, right=False)
    assert 0 < spent <= 0.005 * 1000 * STEP_US


def test_holds_come_back_when_guesses_become_good() -> None:
    state, _ = run(HoldState(), 500, answer_us=3_000, right=False)
    state, _ = run(state, 150, answer_us=3_000, right=True)
    assert run(state, 100, answer_us=3_000, right=True)[1] == 100 * 3_000


def test_a_hold_is_never_longer_than_its_chance_of_a_saved_step() -> None:
    state = replace(HoldState(), chance=0.2, wait_us=1_000.0)
    assert state.limit_us(HELD, STEP_US) == pytest.approx(0.2 * STEP_US)


@pytest.mark.parametrize(
    "budget",
    [replace(HELD, drafting=False), replace(HELD, max_nodes=0), replace(HELD, max_hold_us=0)],
)
def test_nothing_is_waited_for_without_a_drafter(budget: VerifyBudget) -> None:
    assert HoldState().limit_us(budget, STEP_US) == 0.0


def test_serial_waits_until_two_holds_were_in_vain() -> None:
    serial = replace(HELD, schedule=Schedule.SERIAL, max_hold_us=2_000_000)
    state = HoldState()
    for _ in range(2):
        assert state.limit_us(serial, STEP_US) >= 1e6
        state = state.held(2e6, in_vain=True)
    assert state.limit_us(serial, STEP_US) == 0.0
    assert state.on_time().limit_us(serial, STEP_US) >= 1e6


def test_free_never_waits() -> None:
    assert HoldState().limit_us(replace(HELD, schedule=Schedule.FREE), STEP_US) == 0.0


def test_a_tree_that_promises_a_token_is_verified_at_once() -> None:
    assert is_rich(1.1)
    assert not is_rich(0.9)


def test_patience_ends_where_tokens_per_time_would_fall() -> None:
    """Half a token more in a step of 2.5 tokens and 20 ms: worth 4 ms."""
    assert patience_us(0.5, 2.5, 20_000.0) == pytest.approx(4_000.0)
