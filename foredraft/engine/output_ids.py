"""The token ids that a draft can guess, if they are not all: its reduced output vocabulary.

Most of a small model's time goes into its head, and most of a vocabulary is hardly ever written.
Such a draft has logits of some ids only, in ascending order; it reads all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foredraft.engine.model_config import VOCABULARY_FILE, UnsupportedModel, has_output_ids

_TENSOR = "ids"


class OutputIds:
    """What the places of a row of logits stand for.

    Two of them are equal only if they are one object, so that tensors made from it can be kept.
    """

    def __init__(self, ids: Tensor) -> None:
        """``ids``: int64 [n], ascending, each once, at least one."""
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def below(self, size: int) -> OutputIds:
        """Those smaller than ``size``: as the ids ascend, the first ones."""
        count = int((self.ids < size).sum())
        return self if count == len(self) else OutputIds(self.ids[:count])

    def find(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Where ``tokens`` (int64 [m]) stand: places of those that are there, and which are: [m]"""
        places = torch.searchsorted(self.ids, tokens).clamp_(max=len(self) - 1)
        found = self.ids[places] == tokens
        return places[found], found


def read_output_ids(
    directory: Path, vocab_rows: int, vocab_size: int, device: torch.device
) -> OutputIds | None:
    """The ids of the directory's vocabulary file; None without one: the head is whole.

    Ids from ``vocab_size`` on are rows of padding that nobody can guess; they are left out.

    Raises:
        UnsupportedModel: the file is not one tensor ``ids`` of ascending ids below ``vocab_rows``,
            or all of them are padding.
    """
    if not has_output_ids(directory):
        return None
    ids = _read(directory / VOCABULARY_FILE)
    if ids.dtype != torch.int32 or ids.dim() != 1 or not len(ids):
        found = f"{str(ids.dtype).removeprefix('torch.')} {list(ids.shape)}"
        raise _refusal(f"must be int32 [n], n at least 1, not {found}")
    if not bool((ids[1:] > ids[:-1]).all()):
        raise _refusal("must ascend, each id once")
    if ids[0] < 0 or ids[-1] >= vocab_rows:
        wrong = int(ids[0] if ids[0] < 0 else ids[-1])
        raise _refusal(f"must be from 0 to {vocab_rows - 1}, as vocab_size says, not {wrong}")
    if ids[0] >= vocab_size:
        raise _refusal(f"must hold an id below {vocab_size}, which is the size of the tokenizer")
    return OutputIds(ids.to(device, torch.int64)).below(vocab_size)


def _read(file: Path) -> Tensor:
    try:
        with safe_open(file, framework="pt") as tensors:
            return _only_tensor(tensors)
    except (OSError, SafetensorError) as error:
        raise UnsupportedModel(f"{file.name} is not a safetensors file: {error}") from error


def _only_tensor(tensors: Any) -> Tensor:
    names = sorted(tensors.keys())
    if names != [_TENSOR]:
        raise UnsupportedModel(
            f"{VOCABULARY_FILE} must hold one tensor named {_TENSOR}, not {names or 'none'}"
        )
    ids: Tensor = tensors.get_tensor(_TENSOR)
    return ids


def _refusal(allowed: str) -> UnsupportedModel:
    return UnsupportedModel(f"{VOCABULARY_FILE}: {_TENSOR} {allowed}")
