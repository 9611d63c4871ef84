"""How many guesses are worth making for each of several sequences."""

from __future__ import annotations

_SLACK = 2.0  # what hangs below verified guesses serves the next step, after a hit
_LEAST = 3  # so many are made for each, however many sequences there are


def node_share(max_nodes: int, sequences: int) -> int:
    """Guesses for one of ``sequences``, where a step verifies ``max_nodes`` of all together.

    More of them would cost drafting time, which delays the others' guesses, and never be verified.
    """
    fair = _SLACK * max_nodes / max(1, sequences)
    return min(max_nodes, max(_LEAST, round(fair)))
