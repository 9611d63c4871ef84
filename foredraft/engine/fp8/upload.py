"""Numbers from the host into tensors of the device, while steps run there."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(target: Tensor, values: NDArray[np.generic]) -> None:
    """Copy ``values`` to ``target``, of its shape and dtype, in the order of the stream.

    Memory that is not pinned would be copied once the device has done all its work. What is pinned
    here is used for nothing else until the copy has been made.
    """
    source = torch.from_numpy(values)
    if target.is_cuda:
        source = source.pin_memory()
    target.copy_(source, non_blocking=True)
