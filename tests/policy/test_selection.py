from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foredraft.policy.cost import StepCost
from foredraft.policy.selection import Candidate, select_nodes

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


def test_guesses_that_gain_almost_nothing_are_left_out() -> None:
    flat = StepCost((1, 2), (10.0, 10.0))
    assert select_nodes(chain(0, 0.02, 1), 1, 64, flat) == []
    assert len(select_nodes(chain(0, 0.04, 1), 1, 64, flat)) == 1
