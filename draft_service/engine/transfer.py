"""Numbers on their way to a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Numbers = Sequence[int] | Sequence[tuple[int, int]]


def to_device(numbers: Numbers, device: torch.device) -> Tensor:
    """As int64, from pinned memory to a GPU: a copy from any other waits for the device."""
    if device.type != "cuda":
        return torch.tensor(numbers)
    return torch.tensor(numbers, pin_memory=True).to(device, non_blocking=True)
