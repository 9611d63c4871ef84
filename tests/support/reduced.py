"""Draft directories with a reduced output vocabulary."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file

FILE = "draft_vocabulary.safetensors"


def write_vocabulary(directory: Path, ids: Iterable[int]) -> Path:
    """Let the model in ``directory`` guess ``ids`` only."""
    save_file({"ids": torch.tensor(list(ids), dtype=torch.int32)}, directory / FILE)
    return directory


def reduced_twin(model: Path, to: Path, ids: Iterable[int]) -> Path:
    """The same model, as a draft that can guess ``ids`` only."""
    return write_vocabulary(Path(shutil.copytree(model, to)), ids)
