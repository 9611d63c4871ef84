"""Linear layers whose rows do not depend on each other's company."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from foredraft.engine.model_config import UnsupportedModel
from foredraft.engine.row_tile import FIXED_LAUNCH

# The overload itself: to look it up at each call takes longer than to make the call.
_HALF_PRODUCT = torch.ops.quantized.linear_dynamic_fp16.default


class Linear(Protocol):
    """y = x Wᵀ for x [rows, in_features]; the result has the model's activation dtype."""

    def __call__(self, x: Tensor) -> Tensor: ...


class DenseLinear:
    """Weights and arithmetic in one dtype, by the library's own product."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight  # [out_features, in_features]

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight)


class HalfLinear:
    """float16 weights, float32 activations and sums: FBGEMM's packed product on x86.

    Half the bytes of float32 at every step, and 8 times finer than bfloat16. Weights beyond
    float16's range would be clipped by the packing, so they are refused.
    """

    def __init__(self, weight: Tensor) -> None:
        check_half(weight)
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = _HALF_PRODUCT(x, self._packed)
        return product


class BiasedLinear:
    """Adds a bias to the result of another linear layer.

    An operation of its own: inside a product it might choose another kernel than the one whose
    row tile was measured.
    """

    def __init__(self, inner: Linear, bias: Tensor) -> None:
        self._inner = inner
        self._bias = bias  # [out_features], of the activation dtype

    def __call__(self, x: Tensor) -> Tensor:
        return self._inner(x).add_(self._bias)


class FixedLaunchLinear:
    """Runs another linear layer in launches of a fixed number of rows.

    For libraries whose bits change with the row count whatever the padding.
    """

    def __init__(self, inner: Linear) -> None:
        self._inner = inner

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] == FIXED_LAUNCH:
            return self._inner(x)
        return torch.cat([self._inner(piece) for piece in x.split(FIXED_LAUNCH)])


def check_half(weight: Tensor) -> None:
    """Raises UnsupportedModel if float16 cannot hold a weight; NaN is refused, too."""
    largest = weight.float().abs().max().item()
    if not largest <= torch.finfo(torch.float16).max:
        raise UnsupportedModel("a weight is not finite in float16; use --dtype float32")


def has_half_linear() -> bool:
    """True where FBGEMM's float16 product exists."""
    return torch.backends.cpu.get_cpu_capability() != "DEFAULT" and bool(
        {"fbgemm", "x86"} & set(torch.backends.quantized.supported_engines)
    )
