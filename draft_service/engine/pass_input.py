"""What a pass of a fixed shape is given: a table of numbers, which goes over in one copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_service.engine.rows import Rows
from foredraft.engine.noise import noise_key
from foredraft.engine.sampling import only_noise

MOST_ROWS = 64
LINE = 32  # ancestors of a node, itself included
_TOKEN, _POSITION, _SLOT, _FIRST, _SEEN, _LAST, _DEPTH, _KEY, _HEAT, _LINES = range(10)
_COLUMNS = _LINES + LINE


@dataclass(frozen=True, slots=True)
class PassInput:
    """Views of the table on the device: int64 [rows] each, as far apart as the table's rows.

    slot: where a row's entry goes, counted over the whole memory.
    first: where its sequence begins; ``seen``: so many slots from there on it sees; ``last``: the
        last one from there on that may be read.
    lines: [rows, LINE], slots that a row sees besides; its own behind the first ``depth``.
    key, heat: of its noise; float64 temperatures, 0: none.
    """

    table: Tensor
    token: Tensor
    position: Tensor
    slot: Tensor
    first: Tensor
    seen: Tensor
    last: Tensor
    depth: Tensor
    key: Tensor
    heat: Tensor
    lines: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> PassInput:
        return cls.of(torch.zeros(rows, _COLUMNS, dtype=torch.int64, device=device))

    @classmethod
    def of(cls, table: Tensor) -> PassInput:
        return cls(
            table=table,
            token=table[:, _TOKEN],
            position=table[:, _POSITION],
            slot=table[:, _SLOT],
            first=table[:, _FIRST],
            seen=table[:, _SEEN],
            last=table[:, _LAST],
            depth=table[:, _DEPTH],
            key=table[:, _KEY],
            heat=table.view(torch.float64)[:, _HEAT],
            lines=table[:, _LINES:],
        )

    def __getitem__(self, rows: slice) -> PassInput:
        return self.of(self.table[rows])


class PassNumbers:
    """The same table on the host, from where it is sent."""

    def __init__(self, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._table = torch.zeros(MOST_ROWS, _COLUMNS, dtype=torch.int64, pin_memory=pinned)
        self._numbers: NDArray[np.int64] = self._table.numpy()
        self._heats = self._numbers[:, _HEAT].view(np.float64)

    def send(self, table: Tensor) -> None:
        """As many rows as that table on the device has; a graph may hold this copy."""
        table.copy_(self._table[: len(table)], non_blocking=True)

    def clear(self) -> None:
        """Rows that nobody needs: token 0 at position 0 in slot 0, of nobody."""
        self._numbers.fill(0)

    def fill(self, rows: Rows, count: int) -> None:
        """Up to ``count`` rows, once what was sent before has arrived; nobody needs the last."""
        self._numbers[len(rows) : count] = 0
        numbers = self._numbers[: len(rows)]
        numbers[:, :_DEPTH] = rows.numbers
        numbers[:, _DEPTH:_LINES] = 0
        numbers[:, _LINES:] = (numbers[:, _SLOT] - numbers[:, _FIRST])[:, None]
        for row, line in enumerate(rows.lines):
            if line:
                numbers[row, _DEPTH] = len(line)
                numbers[row, _LINES : _LINES + len(line)] = line
        for row, look in zip(rows.looked, rows.looks, strict=True):
            if look is not None and only_noise(look):
                numbers[row, _KEY] = noise_key(look.params.seed, look.choice, look.position)
                self._heats[row] = look.params.temperature
