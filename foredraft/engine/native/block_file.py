"""The weights of a directory once more, in blocks: what a conversion from GGUF leaves beside them.

For each matrix NAME: ``NAME.levels``, int8 [rows, columns] or, two of 4 bits in a byte, uint8
[rows, columns / 2] with the even column in the low half; ``NAME.scales`` and, for 4 bits,
``NAME.least``, float16 [rows, columns / 32].
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from foredraft.engine.model_config import BLOCK_FILE, UnsupportedModel
from foredraft.engine.native.blocks import BLOCK, Blocks
from foredraft.engine.weights import open_tensors


class BlockFile:
    """Reads one matrix at a time."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """Raises UnsupportedModel: the file is missing or broken."""
        self._file = stack.enter_context(open_tensors(directory / BLOCK_FILE))
        self._names = frozenset(self._file.keys())

    def read(self, name: str, weight: Tensor) -> Blocks:
        """The blocks of ``weight`` [rows, columns], which has this name.

        Raises:
            UnsupportedModel: there are none, or they hold other numbers: the weights may have been
                trained since, and are what the model is.
        """
        found = self._find(name, *weight.shape)
        if found is None or not found.sound or not found.equals(weight):
            raise UnsupportedModel(
                f"{BLOCK_FILE} does not hold the weights of the model (first {name}): delete it"
            )
        return found

    def _find(self, name: str, rows: int, columns: int) -> Blocks | None:
        per_block = (rows, columns // BLOCK)
        scales = self._tensor(f"{name}.scales", torch.float16, *per_block)
        least = self._tensor(f"{name}.least", torch.float16, *per_block)
        if least is None:
            levels = self._tensor(f"{name}.levels", torch.int8, rows, columns)
        else:
            levels = self._tensor(f"{name}.levels", torch.uint8, rows, columns // 2)
        if scales is None or levels is None:
            return None
        return Blocks(levels if least is None else _unpacked(levels), scales, least)

    def _tensor(self, key: str, dtype: torch.dtype, *shape: int) -> Tensor | None:
        if key not in self._names:
            return None
        tensor: Tensor = self._file.get_tensor(key)
        return tensor if tensor.dtype == dtype and tensor.shape == shape else None


def _unpacked(halves: Tensor) -> Tensor:
    """[rows, columns / 2] to [rows, columns]."""
    return torch.stack((halves & 15, halves >> 4), dim=2).flatten(1)
