"""The model is asked for as much as pays: against fixed thresholds, in modelled time."""

from __future__ import annotations

from statistics import fmean

import pytest
from support.modelled import SerialRun, Times

from draft_service.model_pass import ModelPass, Pacer
from foredraft.policy.pass_cost import PassCost

GOOD = (0.754, 0.084, 0.024)  # how often the draft's first, second and third guess is right
POOR = tuple(share * 0.3 / 0.754 for share in GOOD)
FIXED = (0.4, 0.2, 0.1, 0.05, 0.02, 0.01)


def own_to_best(times: Times, shares: tuple[float, ...], sequences: int, steps: int) -> float:
    """Tokens per millisecond with the threshold that tunes itself, to those of the best way.

    The best of fixed thresholds and of no draft at all.
    """
    rates = [sequences / times.step]
    for threshold in FIXED:
        fixed = SerialRun(times, shares, sequences, fixed=threshold)
        fixed.rate(steps // 2)
        rates.append(fixed.rate(steps))
    own = SerialRun(times, shares, sequences)
    own.rate(steps)
    return own.rate(2 * steps) / max(rates)


@pytest.mark.parametrize(
    ("times", "shares", "sequences"),
    [
        (Times(17.5, 0.0, 0.3, 0.0), GOOD, 1),  # all is cheap: low thresholds are best
        (Times(2.7, 1.5, 4.0, 0.0), GOOD, 1),  # nothing pays
        pytest.param(Times(40.0, 1.5, 4.0, 1.5), GOOD, 1, marks=pytest.mark.slow),
        pytest.param(Times(17.5, 0.2, 0.3, 0.1), POOR, 4, marks=pytest.mark.slow),
    ],
)
def test_as_good_as_the_best_fixed_threshold(times, shares, sequences) -> None:
    assert own_to_best(times, shares, sequences, steps=40) > 0.97


@pytest.mark.slow
@pytest.mark.parametrize("step", [2.7, 17.5, 40.0])
@pytest.mark.parametrize("draft", [0.3, 4.0])
@pytest.mark.parametrize("step_row", [0.0, 1.5])
@pytest.mark.parametrize("shares", [GOOD, POOR])
def test_as_good_as_the_best_fixed_threshold_everywhere(step, draft, step_row, shares) -> None:
    assert own_to_best(Times(step, step_row, draft, 0.0), shares, 1, steps=150) > 0.97


def test_a_draft_that_does_not_pay_is_tried_now_and_then() -> None:
    run = SerialRun(Times(2.7, 0.0, 4.0, 0.0), POOR)
    run.rate(100)
    before = run.draft.passes
    run.rate(900)
    tried = run.draft.passes - before
    assert 1 <= tried <= 0.006 * run.milliseconds / 4.0


def test_a_first_pass_that_read_much_does_not_say_what_the_next_one_costs() -> None:
    now = [0.0]
    pacer = Pacer(lambda: now[0])

    def make(rows: int, milliseconds: float) -> None:
        began, now[0] = now[0], now[0] + milliseconds / 1000
        pacer.made(ModelPass([], rows, 0.5), began)

    make(rows=21, milliseconds=40.0)
    assert pacer.allows(ModelPass([], 1, 0.5), tokens_per_ms=0.05)
    for _ in range(7):
        make(rows=1, milliseconds=4.0)
    assert pacer.allows(ModelPass([], 1, 0.5), tokens_per_ms=0.05)
    assert not pacer.allows(ModelPass([], 21, 0.5), tokens_per_ms=0.05)


@pytest.mark.parametrize("share, pays_in_company", [(1.1, False), (1.6, True)])
def test_a_pass_on_the_targets_cores_has_to_bring_more(share: float, pays_in_company: bool) -> None:
    planned = ModelPass([], 1, share * 0.05 * 4.0)
    for burden, allowed in ((1.0, True), (1.5, pays_in_company)):
        pacer = Pacer(lambda: 0.0, burden)
        pacer.cost = PassCost(passes=8, rows=1.0, milliseconds=4.0)
        assert pacer.allows(planned, tokens_per_ms=0.05) == allowed


def test_a_draft_that_does_not_pay_does_not_read_on_either() -> None:
    run = SerialRun(Times(2.7, 0.0, 4.0, 0.0), POOR)
    run.rate(100)
    run.draft.caught_up = 0
    run.rate(900)
    assert run.draft.caught_up <= 0.006 * run.milliseconds / 4.0  # not once in 32 tokens


def test_a_draft_that_becomes_worth_it_is_used_again() -> None:
    run = SerialRun(Times(17.5, 0.0, 2.0, 0.0), tuple(share / 100 for share in GOOD))
    run.rate(100)
    before = run.draft.passes
    run.rate(50)
    assert run.draft.passes - before < 5
    run.draft.shares = GOOD
    run.rate(300)
    assert run.rate(50) > 1.5 / 17.5


def test_a_poor_sequence_has_a_smaller_tree_than_a_good_one() -> None:
    passes = {}
    for shares in (GOOD, POOR):
        run = SerialRun(Times(17.5, 0.0, 1.0, 0.0), shares)
        run.rate(60)
        before = run.draft.passes
        run.rate(60)
        passes[shares] = run.draft.passes - before
    assert 60 < passes[POOR] < 0.6 * passes[GOOD]


def test_one_sequence_alone_may_fill_a_pass() -> None:
    """Rows that cost nothing are used; where they cost a lot, passes are narrow."""
    cheap, dear = (SerialRun(Times(40.0, 0.0, 1.0, row), GOOD) for row in (0.0, 0.8))
    for run in (cheap, dear):
        run.rate(60)
    assert max(cheap.draft.looks) > 8
    assert fmean(dear.draft.looks[30:]) < 0.6 * fmean(cheap.draft.looks[30:])
