"""Where a commit ends: EOS, stop ids, budgets and the context, token by token."""

from __future__ import annotations

import pytest

from foredraft.params import FinishReason, SamplingParams
from foredraft.wire.messages import Limits, ModelInfo, OpenSequence
from verify_service.acceptance import Accepted, Ending, accept, apply_stops
from verify_service.sequence import VerifySequence

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
    ending = apply_stops(tokens, 100, {EOS, 77})
    assert ending.tokens == tuple(tokens[: place - 1])
    assert ending.finish is STOP


@pytest.mark.parametrize("budget", range(1, 13))
def test_budget_is_exact(budget: int) -> None:
    """Rounds of six tokens deliver exactly max_tokens."""
    delivered = 0
    while True:
        ending = apply_stops([3, 4, 5, 6, 7, 8], budget - delivered, {EOS})
        delivered += len(ending.tokens)
        if ending.finish is not None:
            break
    assert (delivered, ending.finish) == (budget, LENGTH)


def test_a_stop_before_the_budget_wins() -> None:
    round_tokens = [10, 11, EOS, 20, 21, 22]
    five = apply_stops(round_tokens, 5, {EOS})
    two = apply_stops(round_tokens, 2, {EOS})
    assert (five.tokens, five.finish) == ((10, 11), STOP)
    assert (two.tokens, two.finish) == ((10, 11), LENGTH)


def test_what_stops_nothing_is_a_token() -> None:
    assert apply_stops([5, EOS, 6], 50, frozenset()) == Ending((5, EOS, 6), None)


def test_a_sequence_ends_at_its_budget_or_at_the_end_of_the_context() -> None:
    model = ModelInfo("m", "", 100, context_length=20, eos_token_ids=(EOS,))
    limits = Limits(max_sequences=1, max_nodes=8, max_depth=8)
    for max_tokens, budget in ((50, 16), (7, 7)):
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=(9,), ignore_eos=True)
        opened = OpenSequence(1, 1, (3, 4, 5, 6), params)
        sequence = VerifySequence.open(0, opened, limits, model)
        assert (sequence.budget, sequence.stops) == (budget, {9})
        sequence.advance((7, 8))
        assert sequence.budget == budget - 2
