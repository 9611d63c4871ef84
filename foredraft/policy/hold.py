"""How long a step waits for guesses: never longer than they have been worth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foredraft.params import Schedule
from foredraft.wire.messages import VerifyBudget

_RICH = 2.0  # tokens that a tree must promise to be verified at once
_SERIAL_HOLD_US = 2_000_000.0  # a drafter that is silent for longer has failed
_PATIENCE = 2  # holds in a row that may end in vain before waiting stops
_MEMORY = 0.05  # weight of the newest step in the average
_PROBE = 0.05  # share of a plain step that is always risked, so that good guesses are noticed


def is_rich(survivals: Iterable[float]) -> bool:
    """True if what is left of a tree after a hit is worth a step without waiting for more."""
    return sum(survivals) >= _RICH


@dataclass(frozen=True, slots=True)
class HoldState:
    """History of a step loop; replaced, never changed.

    tokens_per_step: average tokens per sequence and step while guesses are used, the target's
        own included. It starts hopeful: the first guesses are worth a look.
    """

    in_vain: int = 0
    tokens_per_step: float = 2.0

    def limit_us(self, budget: VerifyBudget, plain_step_us: float) -> float:
        """Longest wait for the next step; 0 while drafting is off, down or late.

        With e tokens per step of cost c a wait w pays while e / (c + w) >= 1 / c.
        """
        if not budget.drafting or budget.max_nodes == 0 or self.in_vain >= _PATIENCE:
            return 0.0
        if budget.schedule is Schedule.SERIAL:
            return _SERIAL_HOLD_US
        worth = max(self.tokens_per_step - 1.0, _PROBE) * plain_step_us
        return min(float(budget.max_hold_us), worth)

    def held(self, *, in_vain: bool) -> HoldState:
        """After a hold: ``in_vain`` if it ran into its limit."""
        return HoldState(self.in_vain + 1 if in_vain else 0, self.tokens_per_step)

    def on_time(self) -> HoldState:
        """After complete guesses for a current root arrived: waiting may pay again."""
        return HoldState(0, self.tokens_per_step)

    def stepped(self, tokens: int, sequences: int) -> HoldState:
        """After a step that committed ``tokens`` for ``sequences`` speculating sequences."""
        if sequences == 0:
            return self
        average = self.tokens_per_step + _MEMORY * (tokens / sequences - self.tokens_per_step)
        return HoldState(self.in_vain, average)
