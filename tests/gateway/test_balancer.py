"""From steps to windows: which of them count, and when a window has seen enough."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from foredraft.policy.balance import FIRST_WAY, Way
from gateway.balancer import Balancer

TOKENS_PER_STEP = {Way.HELD: 2.0, Way.FREE: 3.0, Way.SERIAL: 4.0, Way.PLAIN: 1.0}
TRIALS = 12  # of two other ways, each after a rest of at least twenty windows
# Tokens and milliseconds of steps: guesses lose among 32 sequences, and gain alone.
Costs = dict[Way, tuple[float, float]]
IN_COMPANY: Costs = {
    Way.PLAIN: (1.0, 2.0),
    Way.FREE: (1.1, 2.5),
    Way.HELD: (1.15, 2.6),
    Way.SERIAL: (1.3, 7.0),
}
ALONE: Costs = {
    Way.PLAIN: (1.0, 0.85),
    Way.FREE: (1.45, 1.1),
    Way.HELD: (1.5, 1.2),
    Way.SERIAL: (1.8, 2.6),
}
COPY: Costs = IN_COMPANY | {Way.FREE: (2.5, 2.7), Way.HELD: (2.6, 2.9)}
LONGEST_REST = 6_000  # steps
PERIOD_MS = {Way.HELD: 20.0, Way.FREE: 20.0, Way.SERIAL: 50.0, Way.PLAIN: 20.0}


def run(balancer: Balancer, steps: int, sequences: int = 8, speculating: int = 8) -> list[Way]:
    """Ways of so many steps; those that follow a change at once are still run the old way."""
    ways = [balancer.way, balancer.way]
    for _ in range(steps):
        way = ways[-2]
        tokens = round(TOKENS_PER_STEP[way] * speculating)
        promised = tokens - speculating
        way = balancer.stepped(sequences, speculating, tokens, promised, PERIOD_MS[way], 19.0)
        ways.append(way)
    return ways[2:]


def drive(balancer: Balancer, costs: Costs, steps: int, sequences: int) -> list[Way]:
    """Ways of so many steps of the device, whose times hardly differ."""
    rng = random.Random(steps)
    ways = []
    for _ in range(steps):
        ways.append(balancer.way)
        each, period_ms = costs[balancer.way]
        tokens = int(each * sequences + rng.random())
        promised = (each - 1.0) * sequences
        period_ms *= rng.uniform(0.95, 1.05)
        balancer.stepped(sequences, sequences, tokens, promised, period_ms, costs[Way.PLAIN][1])
    return ways


def share_of_plain(costs: Costs, ways: list[Way]) -> float:
    """Tokens per time, as a share of what plain decoding would have brought."""
    tokens = sum(costs[way][0] for way in ways)
    return tokens / sum(costs[way][1] for way in ways) * costs[Way.PLAIN][1]


def test_where_guesses_lose_hardly_a_step_is_a_trial() -> None:
    balancer = Balancer()
    first, later = (drive(balancer, IN_COMPANY, steps, 32) for steps in (1_000, 20_000))
    assert share_of_plain(IN_COMPANY, first) > 0.95
    assert share_of_plain(IN_COMPANY, later) > 0.995
    assert later.count(Way.PLAIN) > 0.98 * len(later)


def test_guesses_are_used_again_soon_after_the_load_has_fallen() -> None:
    balancer = Balancer()
    drive(balancer, IN_COMPANY, 5_000, 32)
    assert balancer.way is Way.PLAIN
    drive(balancer, ALONE, 400, 1)
    assert drive(balancer, ALONE, 1_000, 1).count(Way.PLAIN) < 200
    drive(balancer, IN_COMPANY, 100, 32)
    assert balancer.way is Way.PLAIN


@pytest.mark.parametrize("seen", [500, 5_000, 12_000])
def test_guesses_are_used_again_when_texts_turn_into_copies(seen: int) -> None:
    balancer = Balancer()
    drive(balancer, IN_COMPANY, seen, 32)
    ways = drive(balancer, COPY, LONGEST_REST, 32)
    assert ways[-1] in (Way.FREE, Way.HELD)
    assert drive(balancer, COPY, 1_000, 32).count(Way.PLAIN) < 100


def test_guesses_that_pay_over_whole_answers_are_kept_where_they_begin() -> None:
    """Alone: they lose while an answer is new, and gain much more where it turns into a copy."""
    fresh = ALONE | {Way.FREE: (1.1, 1.05), Way.HELD: (1.1, 1.1)}
    copied = ALONE | {Way.FREE: (4.0, 1.1), Way.HELD: (4.0, 1.2)}
    balancer, ways = Balancer(), []
    for _ in range(40):
        ways.append(drive(balancer, fresh, 200, 1))
        ways.append(drive(balancer, copied, 200, 1))
    late = [way for some in ways[20:] for way in some]
    assert late.count(Way.PLAIN) < 0.1 * len(late)


@pytest.mark.parametrize("missed", [0, 2_000])
def test_drafters_are_awake_before_steps_use_guesses(missed: int) -> None:
    balancer = Balancer()
    drive(balancer, IN_COMPANY, 5_000, 32)
    while balancer.awaited is Way.PLAIN:
        drive(balancer, IN_COMPANY, 1, 32)
    balancer.told(missed)
    steps = 0
    while balancer.way is Way.PLAIN:
        drive(balancer, IN_COMPANY, 1, 32)
        steps += 1
    assert 2.0 * steps == pytest.approx(100.0 + missed / 16.0, rel=0.1)  # milliseconds


def test_a_load_that_comes_and_goes_changes_nothing() -> None:
    balancer = Balancer()
    drive(balancer, ALONE, 2_000, 1)
    assert balancer.way is not Way.PLAIN
    drive(balancer, IN_COMPANY, 2_000, 32)
    assert balancer.way is Way.PLAIN
    for sequences in (16, 8, 4, 2, 1, 2, 4, 8, 16):
        drive(balancer, IN_COMPANY, 15, sequences)
        assert balancer.awaited is Way.PLAIN


def test_settles_on_what_brings_the_most() -> None:
    balancer = Balancer()
    run(balancer, 300)
    ways = run(balancer, 1000)
    assert ways.count(Way.FREE) > 0.9 * len(ways)
    assert Way.PLAIN not in ways


@pytest.mark.parametrize("period_ms, speculating", [(0.0, 8), (20.0, 0)])
def test_steps_that_say_nothing_do_not_count(period_ms: float, speculating: int) -> None:
    balancer = Balancer()
    ways = {balancer.stepped(8, speculating, speculating, 0, period_ms, 19.0) for _ in range(500)}
    assert ways == {FIRST_WAY}


def test_each_size_of_batch_has_its_own_balance() -> None:
    balancer = Balancer()
    run(balancer, 800)
    assert balancer.way is Way.FREE
    for _ in range(2000):  # alone: guesses bring nothing
        balancer.stepped(1, 1, 1, 0, 25.0 if balancer.way is not Way.PLAIN else 20.0, 19.0)
    assert balancer.way is Way.PLAIN
    for _ in range(40):  # of plain decoding, until drafters are awake
        way = balancer.stepped(8, 8, 8, 0, 20.0, 19.0)
    assert way is Way.FREE


def test_a_way_that_loses_much_is_left_before_its_window_ends() -> None:
    balancer = Balancer()
    while balancer.way is not Way.SERIAL:
        balancer.stepped(1, 1, 2, 1, 10.0, 9.0)
    steps = 0
    while balancer.way is Way.SERIAL:
        balancer.stepped(1, 1, 5, 4, 600.0, 9.0)
        steps += 1
    assert steps <= 3


def test_luck_of_guesses_moves_nothing() -> None:
    """The same promises and times everywhere: what came of them is chance, not the way's merit."""
    rng = random.Random(5)
    balancer = Balancer()
    ways = []
    for _ in range(6000):
        speculates = balancer.way is not Way.PLAIN
        tokens = 1 + 4 * (rng.random() < 0.5) if speculates else 1
        way = balancer.stepped(1, 1, tokens, 2.0 * speculates, 10.0, 9.0)
        ways.append(way)
    changes = sum(before is not after for before, after in pairwise(ways[1000:]))
    assert changes <= 2 * TRIALS


def test_promises_that_are_not_kept_count_for_less() -> None:
    balancer = Balancer()
    for _ in range(4000):
        speculates = balancer.way is not Way.PLAIN
        balancer.stepped(1, 1, 1, 2.0 * speculates, 12.0 if speculates else 10.0, 9.5)
    assert balancer.way is Way.PLAIN


def test_a_first_way_that_loses_is_left_at_once() -> None:
    """A drafter that is slow keeps nobody waiting for a whole window."""
    balancer = Balancer()
    steps = 0
    while balancer.way is FIRST_WAY:
        balancer.stepped(1, 1, 2, 1, 120.0, 17.5)
        steps += 1
    assert steps <= 4
