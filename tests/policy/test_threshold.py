"""What passes of a draft model cost and gain, and what time and rows are worth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.policy.pace import Pace, Prices
from foredraft.policy.pass_cost import PassCost
from foredraft.policy.threshold import belongs, look_gain, may_probe, pays, worth_reading


def seen(*passes: tuple[int, float]) -> PassCost:
    cost = PassCost()
    for rows, milliseconds in passes:
        cost = cost.observed(rows, milliseconds)
    return cost


def test_a_pass_costs_what_passes_cost() -> None:
    rng = random.Random(1)
    widths = [rng.randint(1, 16) for _ in range(200)]
    cost = seen(*((rows, 4.0 + 1.5 * rows + rng.gauss(0.0, 0.5)) for rows in widths))
    for rows in (1, 8, 16):
        assert cost(rows) == pytest.approx(4.0 + 1.5 * rows, rel=0.15)
    assert cost.per_row == pytest.approx(1.5, rel=0.1)


def test_nothing_is_said_of_rows_before_they_differ() -> None:
    assert PassCost()(7) == PassCost().per_row == 0.0
    cost = seen((3, 2.0), (3, 4.0))
    assert cost(3) == cost(30) == 3.0


def test_one_slow_pass_is_not_the_end_and_slow_passes_are() -> None:
    cost = seen(*[(4, 1.0)] * 50, (4, 500.0))
    assert cost(4) < 1.2
    assert seen(*[(4, 1.0)] * 50, *[(4, 20.0)] * 100)(4) > 15.0


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.0, 100.0)), max_size=50))
def test_costs_are_never_negative(passes) -> None:
    cost = seen(*passes)
    assert cost.per_row >= 0.0
    assert all(cost(rows) >= -1e-9 for rows in (1, 5, 64))


def test_a_look_gains_what_its_children_bring_beyond_their_rows() -> None:
    looks = (0.75, 0.1, 0.04)
    assert look_gain(0.8, looks, 0.0) == pytest.approx(0.8 * 0.89)
    assert look_gain(0.8, looks, 0.2) == pytest.approx(0.8 * 0.75 - 0.2)
    assert look_gain(0.2, looks, 0.2) == 0.0


def test_a_pass_pays_if_its_time_brings_no_more_elsewhere() -> None:
    cost = seen((4, 2.0))
    assert pays(0.5, 4, cost, tokens_per_ms=0.2) and not pays(0.3, 4, cost, tokens_per_ms=0.2)
    assert pays(0.0, 4, cost, tokens_per_ms=0.0)


def test_rows_are_added_while_they_pay() -> None:
    cost = seen(*((rows, 2.0 + 0.5 * rows) for rows in (1, 9) * 50))
    row = cost.per_row
    assert belongs(0.11 * row, 1, 0.0, 1, cost, tokens_per_ms=0.1)
    assert not belongs(0.09 * row, 1, 0.0, 1, cost, tokens_per_ms=0.1)
    assert not belongs(0.11 * row, 2, 0.0, 1, cost, tokens_per_ms=0.1)
    mean = 0.6 / cost(3)  # tokens per millisecond of the pass as it stands
    assert belongs(1.1 * mean * row, 1, 0.6, 3, cost, tokens_per_ms=0.0)
    assert not belongs(0.9 * mean * row, 1, 0.6, 3, cost, tokens_per_ms=0.0)


def test_probes_take_little_time() -> None:
    assert may_probe(1000.0, 4.0) and not may_probe(700.0, 4.0)


def test_prices_follow_the_steps_and_grow_with_the_sequences() -> None:
    pace = Pace()
    assert pace.prices(5) == Prices()
    for _ in range(10):
        pace = pace.after(tokens=6, sequences=2, period_ms=20.0, row_ms=0.5, plain_ms=15.0)
    assert pace.prices(2).tokens_per_ms == pytest.approx(0.3)
    assert pace.prices(2).tokens_per_row == pytest.approx(0.15)
    assert pace.prices(8).tokens_per_ms == pytest.approx(1.2)
    for _ in range(200):
        pace = pace.after(tokens=1, sequences=1, period_ms=40.0, row_ms=0.5, plain_ms=40.0)
    assert pace.prices(1).tokens_per_ms == pytest.approx(0.025, rel=0.1)


def test_time_is_worth_what_plain_decoding_makes_of_it() -> None:
    pace = Pace()
    for _ in range(10):
        pace = pace.after(tokens=2, sequences=2, period_ms=40.0, row_ms=0.5, plain_ms=8.0)
    assert pace.prices(4).tokens_per_ms == pytest.approx(4 / 8.0)


def test_a_text_is_read_for_long_answers_and_good_looks_only() -> None:
    def reads(gain: float, left: int) -> bool:
        return worth_reading(
            gain, pass_ms=2.0, reading_ms=100.0, tokens_left=left, tokens_per_ms=0.1
        )

    assert reads(0.7, 100) and not reads(0.7, 60)  # 0.5 of a step's gain is left, for 29 or 17
    assert not reads(0.2, 10_000)
    assert worth_reading(0.0, 2.0, 100.0, 0, tokens_per_ms=0.0)  # nobody waits
