"""From steps to windows: which of them count, and when a window has seen enough."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from foredraft.policy.balance import FIRST_WAY, Way
from gateway.balancer import Balancer

TOKENS_PER_STEP = {Way.HELD: 2.0, Way.FREE: 3.0, Way.SERIAL: 4.0, Way.PLAIN: 1.0}
TRIALS = 12  # of two other ways, each after a rest of at least twenty windows
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
    assert balancer.stepped(8, 8, 24, 16, 20.0, 19.0) is Way.FREE


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
