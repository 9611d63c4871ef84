"""How launchers check their tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_tensor(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raises ValueError unless the tensor is contiguous and has this shape and dtype."""
    if list(tensor.shape) != list(shape) or tensor.dtype != dtype or not tensor.is_contiguous():
        found = f"{tensor.dtype} {list(tensor.shape)}"
        raise ValueError(f"{name} must be contiguous {dtype} {list(shape)}, not {found}")
