"""What the host tells a step and what a step tells the host: one copy each, through pinned memory.

A copy from memory that is not pinned waits for the device. Staging is double, so that the host may
write what the next step is told while the newest one's copy is still on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes; a kernel is compiled anew for pointers that are aligned otherwise


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor in a box."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.int32

    @property
    def size(self) -> int:
        """Bytes, up to where the next part may begin."""
        count = self.dtype.itemsize
        for length in self.shape:
            count *= length
        return -(-count // _ALIGNMENT) * _ALIGNMENT


class Mailbox:
    """Tensors that lie in one piece, on the device and twice on the host.

    device: the parts where kernels see them.
    """

    def __init__(self, parts: Mapping[str, Part], device: torch.device) -> None:
        size = sum(part.size for part in parts.values())
        pinned = device.type == "cuda"
        self._memory = torch.zeros(size, dtype=torch.uint8, device=device)
        self._staging = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._arrived: list[torch.cuda.Event | None] = [None, None]
        self.device = _cut(self._memory, parts)
        self._host = [_cut(staging, parts) for staging in self._staging]

    def host(self, turn: int) -> dict[str, Tensor]:
        """The parts that belong to step number ``turn``, once no copy of them is on its way."""
        event = self._arrived[turn % 2]
        if event is not None:
            event.synchronize()
        return self._host[turn % 2]

    def send(self, turn: int) -> None:
        """Host to device, in the order of the stream."""
        self._memory.copy_(self._staging[turn % 2], non_blocking=True)
        self._mark(turn)

    def fetch(self, turn: int) -> None:
        """Device to host, in the order of the stream."""
        self._staging[turn % 2].copy_(self._memory, non_blocking=True)
        self._mark(turn)

    def _mark(self, turn: int) -> None:
        if self._memory.is_cuda:
            event = torch.cuda.Event()
            event.record()
            self._arrived[turn % 2] = event


def _cut(memory: Tensor, parts: Mapping[str, Part]) -> dict[str, Tensor]:
    cut, start = {}, 0
    for name, part in parts.items():
        used = memory[start : start + part.size].view(part.dtype)
        count = torch.Size(part.shape).numel()
        cut[name] = used[:count].view(part.shape)
        start += part.size
    return cut
