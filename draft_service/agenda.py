"""What a drafter has to do, and for which sequences."""

from __future__ import annotations

from draft_service.expansion import Frontier
from draft_service.sequence import DraftSequence, Key


class Agenda:
    """Each kind of work by sequence, in the order in which it came up.

    fresh: to be grown, for they have not been since a commit or a new budget.
    working, ahead: places for the model to look at, before an answer is complete and after.
    lagging: to be prefilled in the background.
    due: have something to send.
    """

    def __init__(self) -> None:
        self.fresh: dict[Key, DraftSequence] = {}
        self.working: dict[Key, Frontier] = {}
        self.ahead: dict[Key, Frontier] = {}
        self.lagging: dict[Key, DraftSequence] = {}
        self.due: dict[Key, DraftSequence] = {}

    @property
    def busy(self) -> bool:
        return bool(self.fresh or self.due) or self.wants_model

    @property
    def wants_model(self) -> bool:
        return bool(self.working or self.ahead or self.lagging)

    def begin_anew(self, sequence: DraftSequence) -> None:
        """Its root is another one: what was to be done for the old one is void."""
        for index in (self.working, self.ahead, self.due):
            index.pop(sequence.key, None)
        self.fresh[sequence.key] = sequence

    def look(self, key: Key, working: Frontier, ahead: Frontier) -> None:
        """From now on the model has these places to look at; none: nothing to do there."""
        if working:
            self.working[key] = working
        else:
            self.working.pop(key, None)
        if ahead:
            self.ahead[key] = ahead
        else:
            self.ahead.pop(key, None)

    def forget(self, key: Key) -> None:
        for index in (self.fresh, self.working, self.ahead, self.lagging, self.due):
            index.pop(key, None)

    def drop_model(self) -> None:
        """There is no model any more."""
        self.working.clear()
        self.ahead.clear()
        self.lagging.clear()
