"""How much a body may ask of the served model; told by lengths, before anything is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.limits import check_count
from foredraft.params import InvalidField
from gateway.intake import Intake


@dataclass(frozen=True, slots=True)
class Bounds:
    """``context`` in tokens; ``sequences`` that are taken in at a time, from all requests."""

    context: int
    sequences: int

    def check_prompts(self, name: str, prompts: Sequence[Any]) -> None:
        """Raises InvalidField if there are too many, or too many ids in one of them."""
        check_count(name, prompts, self.sequences, "prompts")
        for prompt in prompts:
            if isinstance(prompt, list):
                what = f"tokens (the context of {self.context} less one to answer with)"
                check_count(name, prompt, self.context - 1, what)

    def check_choices(self, prompts: int, choices: int) -> None:
        """Raises InvalidField if never so many answers are given at a time."""
        if prompts * choices > self.sequences:
            most = self.sequences // prompts
            raise InvalidField("n", f"at most {most} for so many prompts, not {choices}")


def make_bounds(intake: Intake) -> Bounds:
    """Raises Unavailable if no target has been seen yet."""
    return Bounds(intake.model().context_length, intake.most_sequences)
