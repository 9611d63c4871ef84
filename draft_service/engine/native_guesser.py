"""Guesses by kernels for x86-64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from draft_service.engine.guesser import Guesser, Places, Shares
from foredraft.engine.output_ids import OutputIds
from foredraft.wire.messages import ModelInfo
from kernels.cpu.add_noise import AddNoise
from kernels.cpu.best import Best


class NativeGuesser(Guesser):
    """Finds the best of a row, and adds its noise, in one reading each."""

    def __init__(self, target: ModelInfo, vocab_size: int, known: OutputIds | None) -> None:
        super().__init__(target, vocab_size, known, torch.device("cpu"))
        self._best = Best(self.width)
        self._noise = AddNoise(self._tokens)

    def _add_noise(
        self, logits: Tensor, rows: Sequence[int], keys: Sequence[int], heats: Sequence[float]
    ) -> None:
        all_keys = np.zeros(len(logits), dtype=np.int64)
        all_heats = np.zeros(len(logits), dtype=np.float32)
        all_keys[rows], all_heats[rows] = keys, heats
        self._noise(logits, all_keys, all_heats)

    def _find(self, scores: Tensor) -> tuple[Places, Shares]:
        return self._best(scores)
