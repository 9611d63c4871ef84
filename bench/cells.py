"""What is compared: ways of guessing, each with so many nodes."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from draft_service.drafter import Drafter
from draft_service.sequence import WIDTH
from foredraft.params import Speculation
from foredraft.wire.messages import DraftBudget, Limits, ModelInfo

if TYPE_CHECKING:
    from bench.reader import Reader

MIN_SURVIVAL = 0.05  # what a gateway asks of its drafters
SELF_TUNED = "auto"  # how a threshold is written that costs decide
STREAM = 0
MAX_DEPTH = 32  # and what the workers allow, unless told otherwise


@dataclass(frozen=True, slots=True)
class Draft:
    """A way of guessing. ``chain``: so many guesses in a row, no alternatives; 0: a tree."""

    name: str
    speculation: Speculation
    chain: int = 0

    @property
    def needs_model(self) -> bool:
        return self.speculation in (Speculation.MODEL, Speculation.AUTO)


DRAFTS = {
    draft.name: draft
    for draft in (
        Draft("suffix", Speculation.SUFFIX),
        Draft("chain5", Speculation.MODEL, chain=5),
        Draft("chain7", Speculation.MODEL, chain=7),
        Draft("tree", Speculation.MODEL),
        Draft("both", Speculation.AUTO),
    )
}


PLAIN = Draft("plain", Speculation.OFF)


@dataclass(frozen=True, slots=True)
class Cell:
    """One way of guessing under one budget of nodes per step and sequence.

    min_survival: None: what a pass costs and brings decides.
    """

    draft: Draft
    nodes: int
    min_survival: float | None = MIN_SURVIVAL
    max_depth: int = MAX_DEPTH

    def limits(self, at_once: int) -> Limits:
        return Limits(at_once, self.nodes, self.max_depth)

    def budget(self, at_once: int) -> DraftBudget:
        """All that a gateway would tell the drafter.

        Each sequence gets all the nodes of a step: they are played side by side, not served.
        """
        least = MIN_SURVIVAL if self.min_survival is None else self.min_survival
        return DraftBudget(self.nodes * at_once, self.max_depth, least)

    def drafter(self, target: ModelInfo, at_once: int, model: Reader | None) -> Drafter:
        """A drafter that has seen nothing yet, for ``at_once`` sequences of stream 0."""
        width = 1 if self.draft.chain else WIDTH
        clock = perf_counter if model is None else model.clock
        drafter = Drafter(target, self.limits(at_once), model, width=width, clock=clock)
        drafter.handle(STREAM, self.budget(at_once))
        return drafter


def cells_of(
    drafts: list[Draft], nodes: list[int], min_survival: float | None, max_depth: int
) -> list[Cell]:
    """All combinations; a chain has a length instead of a budget, and is drafted to its end."""
    cells = []
    for draft in drafts:
        if draft.chain:
            cells.append(Cell(draft, draft.chain, 0.0, draft.chain))
        else:
            cells += [Cell(draft, count, min_survival, max_depth) for count in nodes]
    return cells
