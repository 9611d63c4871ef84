"""Memory for weights in pages of 2 MiB, where the system has such.

A step reads all weights once. In pages of 4 KiB the processor looks up a new address for every
eighth block of a tile, and reads no further by itself than a page goes.
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

_PIECE = 32 * 2**20
_ALIGNMENT = 64


class LargePages:
    """Takes in one tensor after another; what is left of a piece when one does not fit is lost."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def keep(self, data: Tensor) -> Tensor:
        """A copy of ``data``, uint8 [n], that lives as long as what is returned."""
        if len(data) > len(self._free):
            self._free = _piece(max(len(data), _PIECE))
        kept = self._free[: len(data)].copy_(data)
        self._free = self._free[-(-len(data) // _ALIGNMENT) * _ALIGNMENT :]
        return kept


def _piece(size: int) -> Tensor:
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
