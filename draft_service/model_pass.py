"""Which nodes the next pass of the draft model looks at: the best over all sequences.

They are ordered by what a look is expected to gain, and as many are taken as pay for their rows
(`policy/threshold.py`); a place whose ancestors have no KV yet needs rows for them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draft_service.expansion import Frontier
from draft_service.sequence import DraftSequence
from draft_service.share import Share
from foredraft.policy.pass_cost import PassCost
from foredraft.policy.threshold import belongs, look_gain, may_probe, pays, worth_reading

_MOST_ROWS = 64  # of all sequences together
_MOST_NODES = 16  # of one sequence
_READING_MEMORY = 0.1  # weight of the newest chunk
_FIRST_PASSES = 8  # are made at any price: one that read much of a text says little of the next


class Evaluation(NamedTuple):
    """Nodes of one sequence to be run through the draft model, parents before children."""

    sequence: DraftSequence
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelPass:
    """``gain``: tokens that it is expected to add to the target's next step."""

    evaluations: list[Evaluation]
    rows: int
    gain: float


class Waiting(NamedTuple):
    """Places of one sequence, and what its share says of time and rows."""

    sequence: DraftSequence
    frontier: Frontier
    share: Share


def plan_pass(waiting: Sequence[Waiting], cost: PassCost, tokens_per_ms: float) -> ModelPass:
    """The next pass. ``tokens_per_ms``: what the time of those who wait for it is worth."""
    gains = [_gains(one, priced=tokens_per_ms > 0.0) for one in waiting]
    ranked = sorted(
        [(-gain, order, node) for order, looks in enumerate(gains) for node, gain in looks.items()]
    )
    chosen: dict[int, list[int]] = {}
    rows, gained = 0, 0.0
    for _, order, node_id in ranked:
        sequence, nodes = waiting[order].sequence, chosen.get(order, [])
        missing = _unfed(sequence, node_id, nodes)
        more = len(missing)
        if missing and missing[0] == sequence.tree.root_id:
            more += sequence.unfed - 1  # committed tokens before the root
        gain = sum([gains[order].get(node, 0.0) for node in missing])
        if rows and (
            rows + more > _MOST_ROWS or not belongs(gain, more, gained, rows, cost, tokens_per_ms)
        ):
            continue
        rows, gained = rows + more, gained + gain
        chosen[order] = nodes + missing
    evaluations = [Evaluation(waiting[order].sequence, tuple(n)) for order, n in chosen.items()]
    return ModelPass(evaluations, rows, gained)


def _gains(one: Waiting, *, priced: bool) -> dict[int, float]:
    """What a look at each of the best places is expected to bring.

    Where nobody waits it is for a later step, which is nearer to the place: no row is too dear.
    """
    looks = one.sequence.calibration.looks()
    per_row = one.share.tokens_per_row if priced else 0.0
    return {
        node_id: look_gain(worth, looks, per_row) for worth, node_id in one.frontier[:_MOST_NODES]
    }


def _unfed(sequence: DraftSequence, node_id: int, chosen: Sequence[int]) -> list[int]:
    """The node and its ancestors that have no KV and are not chosen yet, topmost first.

    The root is one of them. What has KV or is chosen has it with all that is above it.
    """
    nodes, fed = sequence.tree.nodes, sequence.evaluated
    line: list[int] = []
    while node_id not in fed and node_id not in chosen:
        line.append(node_id)
        node = nodes.get(node_id)
        if node is None:
            break
        node_id = node.parent_id
    line.reverse()
    return line


class Pacer:
    """Knows from the passes before what one costs, and says which are made.

    clock: tells seconds.
    burden: what a pass costs, in its own durations.
    """

    def __init__(self, clock: Callable[[], float], burden: float = 1.0) -> None:
        self.cost = PassCost()
        self._clock = clock
        self._burden = burden
        self._ended = 0.0
        self._token_ms = 0.0  # of a text that is read in chunks

    def allows(self, planned: ModelPass, tokens_per_ms: float) -> bool:
        """True if the pass pays, or if one may be tried: there were few, or none for long."""
        if self.cost.passes < _FIRST_PASSES:
            return True
        if pays(planned.gain, planned.rows, self.cost, self._burden * tokens_per_ms):
            return True
        return may_probe((self._clock() - self._ended) * 1000, self.cost(planned.rows))

    def read(self, tokens: int, began: float) -> None:
        """A chunk of a text was read since ``began``."""
        token_ms = (self._clock() - began) * 1000 / tokens
        self._token_ms += (token_ms - self._token_ms) * (_READING_MEMORY if self._token_ms else 1.0)

    def promises(self, one: Waiting) -> bool:
        """True if it pays to read the sequence's text for looks at its best place, or to try."""
        gain = max(_gains(one, priced=True).values(), default=0.0)
        sequence, cost = one.sequence, self.cost(1)
        reading = sequence.unfed * self._token_ms
        if self.cost.passes < _FIRST_PASSES or worth_reading(
            gain, cost, reading, sequence.tokens_left, self._burden * one.share.tokens_per_ms
        ):
            return True
        return may_probe((self._clock() - self._ended) * 1000, reading + cost)

    def made(self, planned: ModelPass, began: float) -> None:
        """The pass is over, and so is the work that hangs on it."""
        self._ended = self._clock()
        self.cost = self.cost.observed(planned.rows, (self._ended - began) * 1000)


def price(waiting: Iterable[Waiting]) -> float:
    """Tokens that a millisecond costs all verify workers that wait, each counted once."""
    return sum({one.sequence.home: one.share.tokens_per_ms for one in waiting}.values())
