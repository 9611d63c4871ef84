"""A draft whose reading of prompts is timed apart from its passes."""

from __future__ import annotations

from time import perf_counter

from draft_service.model_drafter import ModelDrafter
from draft_service.sequence import DraftSequence


class Reader(ModelDrafter):
    """Services read prompts while the target does, so no step is taken to wait for that.

    seconds: how long it has read.
    """

    seconds = 0.0

    def catch_up(self, sequence: DraftSequence) -> None:
        began = perf_counter()
        super().catch_up(sequence)
        self.seconds += perf_counter() - began

    def clock(self) -> float:
        """Seconds of all else."""
        return perf_counter() - self.seconds
