from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.params import Schedule
from foredraft.policy.cost import StepCost
from foredraft.policy.hold import HoldState, is_rich
from foredraft.policy.selection import Candidate, select_nodes
from foredraft.wire.messages import VerifyBudget

DRAFTING = VerifyBudget(max_nodes=64, max_hold_us=10**6, drafting=True)
FREE = StepCost((1,), (10.0,))
STEEP = StepCost((1, 2), (10.0, 20.0))


def chain(sequence: int, confidence: float, depth: int) -> list[Candidate]:
    return [Candidate(sequence, 100 * sequence + d, d, confidence**d) for d in range(1, depth + 1)]


def test_free_rows_take_every_node_and_dear_rows_none() -> None:
    nodes = chain(0, 0.5, 6)
    assert len(select_nodes(nodes, 1, 64, FREE)) == 6
    assert select_nodes(nodes, 1, 64, STEEP) == []


def test_the_number_maximises_tokens_per_time() -> None:
    cost = StepCost((1, 9), (10.0, 18.0))  # one millisecond a row
    nodes = chain(0, 0.8, 8)
    rates = [
        (1 + sum(node.survival for node in nodes[:count])) / cost(1 + count) for count in range(9)
    ]
    assert len(select_nodes(nodes, 1, 64, cost)) == rates.index(max(rates))


def test_the_best_nodes_of_all_sequences_win_and_the_budget_holds() -> None:
    nodes = chain(0, 0.9, 5) + chain(1, 0.5, 5)
    chosen = select_nodes(nodes, 2, 4, FREE)
    assert [node.sequence for node in chosen] == [0, 0, 0, 0]
    assert select_nodes(nodes, 2, 0, FREE) == []


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=8), max_size=5), st.integers(0, 20))
def test_no_node_is_taken_before_its_parent(trees: list[list[float]], budget: int) -> None:
    nodes = []
    for sequence, confidences in enumerate(trees):
        survival = 1.0
        for depth, confidence in enumerate(confidences, start=1):
            survival *= confidence
            nodes.append(Candidate(sequence, 100 * sequence + depth, depth, survival))
    chosen = select_nodes(nodes, max(len(trees), 1), budget, FREE)
    seen: set[int] = set()
    for node in chosen:
        assert node.depth == 1 or node.node_id - 1 in seen
        seen.add(node.node_id)
    assert len(chosen) <= budget


def test_cost_is_piecewise_linear_and_never_falls() -> None:
    cost = StepCost.from_profile([(8, 30.0), (1, 20.0), (4, 18.0)])
    assert [cost(rows) for rows in (1, 4, 6, 8, 12)] == [20.0, 20.0, 25.0, 30.0, 40.0]


def test_hold_is_worth_what_guesses_brought() -> None:
    state = HoldState(tokens_per_step=1.5)
    assert state.limit_us(DRAFTING, 20_000) == pytest.approx(10_000)
    assert state.limit_us(replace(DRAFTING, max_hold_us=4_000), 20_000) == 4_000
    assert state.limit_us(replace(DRAFTING, drafting=False), 20_000) == 0
    assert state.limit_us(replace(DRAFTING, max_nodes=0), 20_000) == 0


def test_a_rich_tree_needs_no_wait() -> None:
    assert is_rich([0.9, 0.8, 0.7])
    assert not is_rich([0.9, 0.9])
    assert not is_rich([])


def test_serial_waits_for_complete_guesses_whatever_they_brought() -> None:
    serial = replace(DRAFTING, schedule=Schedule.SERIAL)
    assert HoldState(tokens_per_step=1.0).limit_us(serial, 20_000) >= 1_000_000
    late = HoldState().held(in_vain=True).held(in_vain=True)
    assert late.limit_us(serial, 20_000) == 0


def test_hold_ends_after_two_vain_waits_and_comes_back() -> None:
    state = HoldState().held(in_vain=True).held(in_vain=True)
    assert state.limit_us(DRAFTING, 20_000) == 0
    assert state.on_time().limit_us(DRAFTING, 20_000) > 0
    assert HoldState().held(in_vain=True).held(in_vain=False).in_vain == 0


def test_hold_follows_the_average_and_keeps_a_probe() -> None:
    state = HoldState()
    for _ in range(200):
        state = state.stepped(8, 8)
    assert 0 < state.limit_us(DRAFTING, 20_000) <= 1_001
    for _ in range(200):
        state = state.stepped(40, 8)
    assert state.tokens_per_step == pytest.approx(5.0, abs=0.01)
    assert state.stepped(0, 0) == state
