"""Which guesses a step verifies: the best over all sequences, as many as pay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

_LEAST_GAIN = 1.03  # guesses that promise less are left out: the estimates are not that good


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could be verified. ``survival``: chance that its whole path is accepted."""

    sequence: int
    node_id: int
    depth: int
    survival: float


def select_nodes(
    candidates: Iterable[Candidate],
    sequences: int,
    max_nodes: int,
    cost: Callable[[int], float],
) -> list[Candidate]:
    """Choose the nodes of a step.

    Nodes are taken in the order of (survival, shallower first), which takes no node before its
    parent, and their number maximises tokens per time, ``(sequences + Σ survival) / cost(rows)``;
    none are taken where even that gains less than 3 % over a plain step.

    Args:
        sequences: sequences in the step; each has one root row and commits at least one token.
        cost: milliseconds of a step of that many rows.
    """
    ordered = sorted(candidates, key=lambda node: (-node.survival, node.depth))[:max_nodes]
    best_rate = _LEAST_GAIN * sequences / cost(sequences)
    best_count = 0
    expected = float(sequences)
    for count, node in enumerate(ordered, start=1):
        expected += node.survival
        rate = expected / cost(sequences + count)
        if rate > best_rate:
            best_rate, best_count = rate, count
    return ordered[:best_count]
