"""The cost of a step: the profile between its points, corrected by what steps really take."""

from __future__ import annotations

import pytest

from foredraft.policy.cost import StepCost

PROFILE = StepCost.from_profile([(6, 20.0), (1, 18.0), (12, 17.0), (24, 44.0)])


@pytest.mark.parametrize(
    ("rows", "expected"), [(0, 18.0), (1, 18.0), (6, 20.0), (9, 20.0), (18, 32.0), (36, 68.0)]
)
def test_is_linear_between_points_and_never_falls(rows: int, expected: float) -> None:
    assert PROFILE(rows) == pytest.approx(expected)


def test_what_steps_take_beyond_the_profile_is_learned() -> None:
    cost = PROFILE
    for _ in range(100):
        cost = cost.observed(6, 26.0)
    assert cost(6) == pytest.approx(26.0, abs=0.01)
    assert cost(24) - cost(6) == pytest.approx(PROFILE(24) - PROFILE(6))


def test_rows_that_are_dearer_than_profiled_are_found_out() -> None:
    """As where each row is sampled: 2 ms more per row."""
    cost = PROFILE
    for turn in range(200):
        rows = (2, 6, 12)[turn % 3]
        cost = cost.observed(rows, PROFILE(rows) + 2.0 * rows)
    assert cost(12) - cost(2) == pytest.approx(PROFILE(12) - PROFILE(2) + 20.0, rel=0.3)


def test_noise_does_not_make_more_rows_cheaper() -> None:
    cost = PROFILE
    for turn in range(200):
        rows = (2, 12)[turn % 2]
        cost = cost.observed(rows, 40.0 - rows)
    assert cost(12) >= cost(2)


def test_holds_do_not_make_rows_dear() -> None:
    """Steps with many guesses are those that were held for them."""
    cost = PROFILE
    for turn in range(200):
        rows, held = ((2, 0.0), (12, 10.0))[turn % 2]
        cost = cost.observed(rows, PROFILE(rows) + held, held)
    assert cost(12) - cost(2) == pytest.approx(PROFILE(12) - PROFILE(2))
    assert cost(2) == pytest.approx(PROFILE(2) + 5.0, abs=1.0)


def test_a_profile_of_a_busy_start_never_makes_steps_free() -> None:
    cost = PROFILE
    for _ in range(100):
        cost = cost.observed(1, 0.1)
    assert cost(1) == pytest.approx(9.0)


def test_one_row_more_costs_what_the_next_few_add() -> None:
    cost = StepCost.from_profile([(1, 10.0), (2, 18.0), (16, 18.0), (32, 34.0)])
    assert cost.per_row(1) == 1.0  # the second row is dear, those after it are free
    assert cost.per_row(2) == 0.0
    assert cost.per_row(16) == 1.0
