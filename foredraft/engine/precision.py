"""Which numbers a model is held and computed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.engine.linear import DenseLinear, HalfLinear, Linear, has_half_linear


@dataclass(frozen=True, slots=True)
class Precision:
    """``stored``: dtype of weights outside linear layers; ``activation``: of what flows."""

    name: str
    stored: torch.dtype
    activation: torch.dtype
    make_linear: Callable[[Tensor], Linear]


def choose_precision(dtype: str, device: torch.device) -> Precision:
    """Resolve a --dtype.

    "auto" is bfloat16 on a GPU; on a CPU float16 weights with float32 arithmetic where the
    library has that product, else float32.

    Raises:
        ValueError: unknown name, or not available on this device.
    """
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float16"
        if device.type == "cpu" and not has_half_linear():
            dtype = "float32"
    if dtype == "float32":
        return Precision(dtype, torch.float32, torch.float32, _dense(torch.float32))
    if dtype == "bfloat16":
        return Precision(dtype, torch.bfloat16, torch.bfloat16, _dense(torch.bfloat16))
    if dtype == "float16" and device.type == "cpu" and has_half_linear():
        return Precision(dtype, torch.float16, torch.float32, HalfLinear)
    allowed = "auto, float32, bfloat16, and float16 on an x86 CPU"
    raise ValueError(f"dtype must be one of {allowed}, not {dtype}")


def _dense(dtype: torch.dtype) -> Callable[[Tensor], Linear]:
    return lambda weight: DenseLinear(weight.to(dtype))
