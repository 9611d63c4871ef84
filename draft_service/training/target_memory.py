"""What the target says in the windows, kept from the first round over them for all later ones."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_service.training.batches import Batch, Windows, moved
from draft_service.training.pair import Pair


class TargetMemory:
    """A pass of the target costs more than all that the draft does in a step, and finds the same
    each time.

    Args:
        room: bytes that may be taken for hidden rows; if those of all windows need more, nothing is
            kept, and every batch is a pass of the target.
    """

    def __init__(self, pair: Pair, windows: Windows, room: int) -> None:
        self._pair = pair
        self._counts = windows.answered.sum(axis=1)
        self._firsts = np.cumsum(self._counts) - self._counts
        self._known = np.zeros(len(windows), dtype=np.bool_)
        shape = (int(self._counts.sum()), pair.head.shape[1])
        size = shape[0] * shape[1] * pair.dtype.itemsize
        self._rows = (
            torch.empty(shape, dtype=pair.dtype, device=pair.device) if size <= room else None
        )

    def rows(self, numbers: NDArray[np.int64], batch: Batch) -> Tensor:
        """`Pair.target_rows` of the windows ``numbers``, which are those in ``batch``."""
        if self._rows is None:
            return self._pair.target_rows(batch)
        places = moved(self._places(numbers), self._pair.device)
        if self._known[numbers].all():
            return self._rows.index_select(0, places)
        found = self._pair.target_rows(batch)
        self._rows.index_copy_(0, places, found)
        self._known[numbers] = True
        return found

    def _places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the rows of these windows are kept, one window after another."""
        counts = self._counts[numbers]
        before = np.cumsum(counts) - counts
        places: NDArray[np.int64] = np.repeat(self._firsts[numbers] - before, counts)
        return places + np.arange(counts.sum())


def room_on(device: torch.device) -> int:
    """Half of what a GPU has left. Elsewhere none: memory is shared there, and a row's last bits
    depend on the batch that it is computed in, so that a run that is resumed would differ."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 0
