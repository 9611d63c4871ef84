"""The ways of running steps are compared by what they brought, and trials cost next to nothing."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from foredraft.policy.balance import FIRST_WAY, Balance, Way, Window

Costs = dict[Way, tuple[float, float]]  # tokens per step and milliseconds per step

SLOW = {Way.HELD: (4.9, 22.5), Way.FREE: (3.0, 17.9), Way.SERIAL: (5.3, 27.0), Way.PLAIN: (1, 17.6)}
WIDE = {Way.HELD: (2.4, 24.0), Way.FREE: (2.3, 19.6), Way.SERIAL: (3.9, 38.0), Way.PLAIN: (1, 18.7)}
POOR = {Way.HELD: (1.2, 3.9), Way.FREE: (1.1, 3.3), Way.SERIAL: (1.3, 9.0), Way.PLAIN: (1, 2.6)}
SHARED = {Way.HELD: (3.0, 30.0), Way.FREE: (2.3, 29.0), Way.SERIAL: (3.9, 31.0), Way.PLAIN: (1, 18)}


def run(
    balance: Balance, costs: Costs, total_ms: float, seed: int = 0, noise: float = 0.15
) -> tuple[Balance, float, Counter[Way]]:
    """Windows of ten steps for a time; what is known then, tokens per millisecond, time by way."""
    rng = random.Random(seed)
    spent, tokens, by_way = 0.0, 0.0, Counter[Way]()
    while spent < total_ms:
        per_step, milliseconds = costs[balance.way]
        got = 10 * per_step * rng.uniform(1 - noise, 1 + noise)
        spent += 10 * milliseconds
        tokens += got
        by_way[balance.way] += 10 * milliseconds
        bound = 1 / (costs[Way.PLAIN][1] * 0.97)
        balance = balance.after(Window(balance.way, got, 10 * milliseconds, bound))
    return balance, tokens / spent, by_way


@pytest.mark.parametrize("costs", [SLOW, WIDE, POOR, SHARED])
@pytest.mark.parametrize("seed", range(5))
def test_comes_close_to_the_best_way_whatever_it_is(costs: Costs, seed: int) -> None:
    best = max(tokens / milliseconds for tokens, milliseconds in costs.values())
    balance, _, _ = run(Balance(), costs, 5_000, seed)
    _, rate, _ = run(balance, costs, 40_000, seed)
    assert rate >= 0.97 * best


def test_follows_when_another_way_becomes_the_best() -> None:
    balance, _, _ = run(Balance(), WIDE, 20_000)
    balance, _, _ = run(balance, POOR, 20_000)
    _, rate, by_way = run(balance, POOR, 20_000)
    assert by_way[Way.PLAIN] > 0.9 * sum(by_way.values())
    assert rate >= 0.97 / 2.6


def test_plain_decoding_is_not_tried_where_it_cannot_win() -> None:
    _, _, by_way = run(Balance(), SLOW, 60_000)
    assert by_way[Way.PLAIN] == 0.0


def test_guesses_that_gain_nothing_are_not_made() -> None:
    level = dict.fromkeys(Way, (1.0, 10.0))
    balance, _, _ = run(Balance(), level, 5_000, noise=0.0)
    _, _, by_way = run(balance, level, 50_000, noise=0.0)
    assert by_way.most_common(1)[0][0] is Way.PLAIN


def test_what_lost_much_rests_long() -> None:
    _, _, by_way = run(Balance(), POOR, 100_000)
    assert by_way[Way.SERIAL] < 0.02 * 100_000


def test_a_first_way_that_loses_against_plain_decoding_rests_long() -> None:
    window = Window(FIRST_WAY, tokens=2.0, milliseconds=100.0, bound=0.1)
    good = Window(FIRST_WAY, tokens=20.0, milliseconds=100.0, bound=0.1)
    poor, rich = (Balance().after(one).records[FIRST_WAY].rest_ms for one in (window, good))
    assert poor == pytest.approx(0.8 * 100.0 / 0.004) and rich == 20 * 100.0
