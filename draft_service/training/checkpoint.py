"""What a training run needs to go on where it was."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draft_service.training.settings import write_whole
from foredraft.params import InvalidField


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The draft after ``step`` steps. The order of the data is a function of the step, and nothing
    else in a step is left to chance: there is no state of a generator to keep.

    weights: those that are trained. seconds: of training so far. tokens: of answers, learned from.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    step: int
    seconds: float
    tokens: int

    def save(self, file: Path) -> None:
        """Written whole or not at all."""
        content = io.BytesIO()
        fields = {name: getattr(self, name) for name in self.__slots__}
        torch.save(fields, content)
        write_whole(file, content.getvalue())

    @classmethod
    def load(cls, file: Path, device: torch.device) -> Checkpoint | None:
        """None if there is none yet.

        Raises:
            InvalidField: the file is no checkpoint.
        """
        if not file.exists():
            return None
        try:
            return cls(**torch.load(file, map_location=device, weights_only=True))
        except (OSError, RuntimeError, TypeError, EOFError, pickle.UnpicklingError):
            text = f"a folder whose {file.name} is whole; without that file training begins anew"
            raise InvalidField("--work", f"{text}: {file}") from None
