"""A target and the draft that learns from it, on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from draft_service.training.batches import Batch
from draft_service.training.decoder import (
    Attend,
    Decoder,
    Turns,
    attend_in_runs,
    attend_within,
    group_mask,
    lay_out,
)
from draft_service.training.prune import prune
from foredraft.engine.device import choose_device
from foredraft.engine.model_config import ModelConfig, read_model_config
from foredraft.engine.model_info import read_model_info


@dataclass(frozen=True, slots=True)
class Pair:
    """``decoder`` is the target's, in ``dtype``; ``draft`` is a transformers model in float32.

    head: [vocabulary, hidden] of both models, without padding rows.
    stored: the type of the target's files.
    """

    shape: ModelConfig
    decoder: Decoder
    head: Tensor
    draft: Any
    stored: torch.dtype

    @property
    def device(self) -> torch.device:
        return self.head.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.dtype

    @torch.no_grad()
    def target_rows(self, batch: Batch) -> Tensor:
        """The target's hidden rows where the draft has to guess, [rows, hidden]."""
        return self._rows(self.decoder, batch)

    def draft_rows(self, batch: Batch) -> Tensor:
        """The draft's, in float32. Its products are in the target's type, its weights are not."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            draft = lay_out(self.draft, self.shape, self.decoder.turns)
            return self._rows(draft, batch).float()

    def _rows(self, decoder: Decoder, batch: Batch) -> Tensor:
        hidden = decoder(batch.tokens, batch.positions, self._attend(batch))
        return hidden.flatten(0, 1).index_select(0, batch.answered)

    def _attend(self, batch: Batch) -> Attend:
        """On a GPU nothing is computed that a mask would hide: most of a window of many answers."""
        if self.device.type == "cuda" and self.dtype != torch.float32:
            return attend_in_runs(batch.runs, batch.tokens.shape[1])
        return attend_within(group_mask(batch.visible(), self.shape.group, self.dtype))


def load_pair(
    target: Path,
    layers: Sequence[int],
    device: torch.device,
    positions: int,
    dtype: torch.dtype | None = None,
) -> Pair:
    """The target, and the draft that is made of it.

    positions: tokens of a window. dtype: the target's; None: bfloat16 on a GPU, else float32.

    Raises:
        UnsupportedModel: the engine does not run this target.
    """
    shape = read_model_config(target)
    vocabulary = read_model_info(target, shape).vocab_size
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    stored = model.dtype
    model.requires_grad_(False).eval().to(device)
    # Before the target is rounded: the draft starts from its own weights, and the library keeps the
    # frequencies of positions in the model, too.
    draft, turns = prune(model, tuple(layers)), Turns.of(model, positions)
    model.to(dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32))
    return Pair(
        shape=shape,
        decoder=lay_out(model, shape, turns),
        head=model.lm_head.weight[:vocabulary],
        draft=draft,
        stored=stored,
    )


def use_device(name: str) -> torch.device:
    """The device of a name, made this thread's own.

    Raises:
        InvalidField: there is no such GPU.
    """
    device = choose_device(name)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)  # without a number it cannot be chosen
        torch.cuda.set_device(device)
        # Every pass here has a mask. Flash attention takes none, and cuDNN plans anew for every
        # shape: without it one kernel runs them all.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device
