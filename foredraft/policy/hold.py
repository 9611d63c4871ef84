"""How long a step waits for guesses: never longer than they have been worth.

A sequence without guesses gets one token from a step. If its guesses were here and the first of
them is right, it saves a whole step; guesses that come while the step runs still serve the next
one. So a wait is worth the chance of that, times the time of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foredraft.params import Schedule
from foredraft.wire.messages import VerifyBudget

_RICH = 1.0  # tokens that a tree must promise to be verified without waiting for more
_PATIENCE = 2  # holds in a row that may end in vain before waiting stops
_CHANCE_MEMORY, _WAIT_MEMORY = 0.1, 0.2  # weights of the newest hold in the averages
_TRIAL = 0.25  # share of a step that is waited when holds have not paid, to see whether they do
_FIRST_REST, _LONGEST_REST = 8, 64  # steps between such trials


def is_rich(promise: float) -> bool:
    """True if what a hit has left of a tree is worth a step without waiting for more."""
    return promise >= _RICH


def patience_us(gained: float, expected: float, step_us: float) -> float:
    """How long more guesses are worth waiting for, if they bring as much as the last ones.

    Args:
        gained: expected tokens that the last guesses added to the step.
        expected: expected tokens of the step, these included.
        step_us: time of the step and of the wait so far.

    Returns:
        The wait w at which gained / w falls to expected / step_us.
    """
    return gained / expected * step_us


@dataclass(frozen=True, slots=True)
class HoldState:
    """History of a step loop; replaced, never changed.

    chance: share of the step's sequences that a hold lets save a step. It starts hopeful: the
        first guesses are worth a look.
    wait_us: how long the first guesses take.
    in_vain: holds in a row that ran into their limit.
    rested: steps since the last hold.
    rest: steps until the next trial where holds do not pay; it grows with every trial in vain.
    """

    chance: float = 0.5
    wait_us: float = 0.0
    in_vain: int = 0
    rested: int = 0
    rest: int = _FIRST_REST

    def limit_us(self, budget: VerifyBudget, plain_step_us: float) -> float:
        """Longest wait for the next step; 0 while drafting is off, down or not worth it."""
        if not budget.drafting or budget.max_nodes == 0:
            return 0.0
        match budget.schedule:
            case Schedule.SERIAL:
                worth = 0.0 if self.in_vain >= _PATIENCE else math.inf
            case Schedule.FREE:
                worth = 0.0
            case Schedule.HELD | Schedule.AUTO:  # which schedule is best, gateways find out
                worth = self._worth_us(plain_step_us)
        return min(float(budget.max_hold_us), worth)

    def _worth_us(self, plain_step_us: float) -> float:
        worth = self.chance * plain_step_us
        if self.wait_us <= worth:
            return worth
        return _TRIAL * plain_step_us if self.rested >= self.rest else 0.0

    def held(self, waited_us: float, *, in_vain: bool) -> HoldState:
        """After a hold whose first guesses came after ``waited_us``.

        ``in_vain``: none came before its limit, so that they take longer than that.
        """
        sample = 2.0 * waited_us if in_vain else waited_us
        return replace(
            self,
            wait_us=self.wait_us + _WAIT_MEMORY * (sample - self.wait_us),
            in_vain=self.in_vain + 1 if in_vain else 0,
            rested=0,
        )

    def on_time(self) -> HoldState:
        """After complete guesses for a current root arrived: no hold need be given up yet."""
        return replace(self, in_vain=0)

    def stepped(self, *, held: bool, saved: int, sequences: int) -> HoldState:
        """After a step of ``sequences``, of which ``saved`` used guesses that were waited for."""
        if not held:
            return replace(self, rested=self.rested + 1)
        chance = self.chance + _CHANCE_MEMORY * (saved / sequences - self.chance)
        rest = _FIRST_REST if saved else min(2 * self.rest, _LONGEST_REST)
        return replace(self, chance=chance, rest=rest)
