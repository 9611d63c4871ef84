"""How far a sequence's tree is grown now, and whether the draft model goes on with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draft_service.agenda import Agenda
from draft_service.budgets import Budgets
from draft_service.expansion import Frontier, frontier, grow
from draft_service.model_pass import Pacer, Waiting
from draft_service.sequence import DraftSequence
from draft_service.share import Share
from foredraft.wire.messages import DraftBudget

if TYPE_CHECKING:
    from draft_service.model_drafter import ModelDrafter  # torch: only where a model is served


class Growth:
    """Turns what is known of a sequence into nodes and into entries of the agenda.

    model: None where there is none, or none any more.
    """

    def __init__(
        self, agenda: Agenda, budgets: Budgets, pacer: Pacer, model: ModelDrafter | None
    ) -> None:
        self.model = model
        self._agenda = agenda
        self._budgets = budgets
        self._pacer = pacer

    def grow(self, sequence: DraftSequence) -> None:
        """Make nodes of what is known now; decide whether the model goes on with them.

        With nothing more to do above the budget's threshold the answer is complete. Then the model
        drafts ahead, above a lower one, if the budget has one: what the target may come to next.
        """
        share = self._budgets.share(sequence)
        working: Frontier = []
        ahead: Frontier = []
        if share.resting:
            sequence.answered = sequence.announced = True
            self._agenda.lagging.pop(sequence.key, None)
        elif not sequence.answered:
            model = self._follower(sequence)
            will_look = model is not None and not model.lags(sequence)
            sequence.await_model(share.waited_for and will_look)
            grow(sequence, share.answer)
            working = self._frontier(model, sequence, share, share.answer)
            sequence.answered = not working
        if sequence.answered:
            self.without_model(sequence)
            if share.ahead is not None and self.model is not None:
                grow(sequence, share.ahead)
                ahead = self._frontier(self._follower(sequence), sequence, share, share.ahead)
        self._agenda.look(sequence.key, working, ahead)
        if sequence.has_news(last=not (working or ahead)):
            self._agenda.due[sequence.key] = sequence

    def without_model(self, sequence: DraftSequence) -> None:
        """Guesses that waited for its word wait no longer."""
        if sequence.await_model(False):
            grow(sequence, self._budgets.share(sequence).answer)

    def _follower(self, sequence: DraftSequence) -> ModelDrafter | None:
        """The model, if it can go on with this text."""
        model = self.model
        return model if model is not None and model.can_follow(sequence) else None

    def _frontier(
        self, model: ModelDrafter | None, sequence: DraftSequence, share: Share, budget: DraftBudget
    ) -> Frontier:
        """What the model shall look at now; a sequence that lags far behind is not waited for."""
        if model is None:
            return []
        nodes = frontier(sequence, budget, model.reach(sequence))
        if not nodes or not model.prepare(sequence):
            return []
        if model.lags(sequence):
            if self._pacer.promises(Waiting(sequence, nodes, share)):
                self._agenda.lagging[sequence.key] = sequence
            return []
        return nodes
