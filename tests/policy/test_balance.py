"""The ways of running steps are compared by what they brought, and trials cost next to nothing."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

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


def test_a_first_way_that_loses_against_plain_decoding_rests_by_what_it_lost() -> None:
    balance = Balance().after(Window(FIRST_WAY, 2.0, 100.0, 0.1))
    assert balance.way is Way.PLAIN
    balance = balance.after(Window(Way.PLAIN, 8.0, 100.0, 0.1))
    assert balance.in_force is Way.PLAIN
    assert balance.records[FIRST_WAY].left_ms == pytest.approx(0.75 * 100.0 / 0.004)


def after(balance: Balance, way: Way, rate: float, bound: float = 1.0) -> Balance:
    return balance.after(Window(way, rate * 100.0, 100.0, bound))


def plain(rate: float = 0.5, **others: float) -> Balance:
    """Plain decoding is in force, and all other ways have been tried in vain."""
    balance = after(Balance.first(Way.PLAIN), Way.PLAIN, rate)
    while balance.way is not Way.PLAIN:
        way = balance.way
        balance = after(balance, way, others.get(way.value, 0.8 * rate))
        balance = after(balance, Way.PLAIN, rate)
    return balance


def test_trials_in_vain_become_rare_but_never_end() -> None:
    balance, trials = plain(), []
    for number in range(20_000):
        if balance.on_trial:
            trials.append((balance.way, number))
        balance = after(balance, balance.way, 0.4 if balance.on_trial else 0.5)
    for way in set(Way) - {Way.PLAIN}:
        rests = [b - a for a, b in pairwise(n for tried, n in trials if tried is way)]
        # A fifth of a window is 0.4 % of 50 windows, and a first trial was before.
        assert [round(rest / 50) for rest in rests[:3]] == [2, 4, 8]
        assert {round(rest / 50) for rest in rests[3:]} == {8}
    assert len(trials) / 20_000 < 0.01


def test_plain_decoding_is_left_for_a_way_that_wins_twice_only() -> None:
    balance = after(plain(), Way.PLAIN, 0.5)
    while not balance.on_trial:
        balance = after(balance, Way.PLAIN, 0.5)
    way = balance.way
    once = after(balance, way, 0.7)
    assert once.way is once.in_force is Way.PLAIN
    again = after(once, Way.PLAIN, 0.5)
    assert again.way is way
    assert after(again, way, 0.7).in_force is way
    assert after(again, way, 0.4).in_force is Way.PLAIN
    left = after(again, way, 0.7)
    for _ in range(6):  # and it is looked at once more, however much that way seems to gain
        left = after(left, way, 0.7)
    assert left.way is Way.PLAIN


def test_passes_with_guesses_do_not_say_how_quick_plain_decoding_is() -> None:
    """They may take as long as their steps: what is known of plain decoding counts more."""
    balance = after(Balance.first(Way.FREE), Way.FREE, 1.0, bound=0.7)
    assert balance.way is Way.PLAIN
    balance = after(balance, Way.PLAIN, 0.9)
    assert balance.in_force is Way.FREE
    while balance.way is not Way.FREE or len(balance.records) < len(Way):
        rate = {Way.FREE: 1.0, Way.PLAIN: 0.9}.get(balance.way, 0.5)
        balance = after(balance, balance.way, rate, bound=0.5)
    for _ in range(6):
        balance = after(balance, Way.FREE, 0.6, bound=0.35)
        if balance.way is not Way.FREE:
            break
    assert balance.way is Way.PLAIN


def test_a_slower_machine_makes_no_way_look_better() -> None:
    balance = plain(0.5, free=0.48)
    for rate in (0.45, 0.4, 0.35, 0.3, 0.3):
        balance = after(balance, Way.PLAIN, rate)
        assert balance.way is Way.PLAIN


def test_another_size_begins_with_what_is_known_of_this_one() -> None:
    known = plain(0.5, free=0.45, held=0.3)
    fewer, more = known.for_size(more=False), known.for_size(more=True)
    assert fewer.way is more.way is Way.PLAIN
    assert fewer.rate == more.rate == 0.0
    fewer, more = (after(balance, Way.PLAIN, 1.0, bound=2.0) for balance in (fewer, more))
    assert fewer.records[Way.FREE].rate == pytest.approx(0.9)
    assert fewer.way is Way.FREE and more.way is Way.PLAIN
    guessing = after(after(fewer, Way.FREE, 1.5), Way.PLAIN, 1.0)
    guessing = after(guessing, Way.FREE, 1.5, bound=2.0)
    assert guessing.in_force is Way.FREE
    assert after(guessing.for_size(more=True), Way.FREE, 0.5, bound=0.6).way is Way.PLAIN
    assert after(guessing.for_size(more=False), Way.FREE, 3.0, bound=4.0).way is not Way.PLAIN
