"""Where a commit ends: EOS, stop ids, budgets and the context, token by token."""

from __future__ import annotations

import pytest

from foredraft.params import FinishReason, SamplingParams
from verify_service.acceptance import Accepted, accept, apply_stops

EOS = 2
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def test_accepts_the_path_that_the_target_chose() -> None:
    # root(9) -> a(5) -> c(7), root -> b(6); the target says 5 after the root, 8 after a.
    assert accept([9, 5, 6, 7], [0, 0, 0, 1], [5, 8, 1, 1]) == Accepted((0, 1), (5, 8))
    assert accept([9, 5, 6, 7], [0, 0, 0, 1], [5, 7, 1, 3]) == Accepted((0, 1, 3), (5, 7, 3))
    assert accept([9, 5, 6, 7], [0, 0, 0, 1], [4, 7, 1, 3]) == Accepted((0,), (4,))
    assert accept([9], [0], [4]) == Accepted((0,), (4,))


@pytest.mark.parametrize("place", range(1, 7))
@pytest.mark.parametrize("stop", [EOS, 77])
def test_nothing_follows_a_stop_inside_a_round(place: int, stop: int) -> None:
    """At each place of a round of five guesses and the target's own token."""
    tokens = [5, 6, 7, 8, 9, 10]
    tokens[place - 1] = stop
    params = SamplingParams(max_tokens=100, stop_token_ids=(77,))
    ending = apply_stops(tokens, 0, 1000, params, (EOS,))
    assert ending.tokens == tuple(tokens[: place - 1])
    assert ending.finish is STOP


@pytest.mark.parametrize("budget", range(1, 13))
def test_budget_is_exact(budget: int) -> None:
    """Rounds of six tokens deliver exactly max_tokens."""
    params = SamplingParams(max_tokens=budget)
    delivered = 0
    while True:
        ending = apply_stops([3, 4, 5, 6, 7, 8], delivered, 1000, params, (EOS,))
        delivered += len(ending.tokens)
        if ending.finish is not None:
            break
    assert (delivered, ending.finish) == (budget, LENGTH)


def test_a_stop_before_the_budget_wins() -> None:
    round_tokens = [10, 11, EOS, 20, 21, 22]
    five = apply_stops(round_tokens, 0, 1000, SamplingParams(max_tokens=5), (EOS,))
    two = apply_stops(round_tokens, 0, 1000, SamplingParams(max_tokens=2), (EOS,))
    assert (five.tokens, five.finish) == ((10, 11), STOP)
    assert (two.tokens, two.finish) == ((10, 11), LENGTH)


def test_ignored_eos_is_a_token_and_the_context_is_a_limit() -> None:
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    assert apply_stops([5, EOS, 6], 0, 1000, params, (EOS,)).tokens == (5, EOS, 6)
    full = apply_stops([5, 6, 7, 8], 2, 3, params, (EOS,))
    assert (full.tokens, full.finish) == ((5, 6, 7), LENGTH)
