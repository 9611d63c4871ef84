"""Weights in int8 with a scale per output channel, and FBGEMM's product with them on x86.

The product takes its inputs in 7 bits under one scale and offset: without VNNI the sums of two
products would overflow 16 bits. Weights are read in half the time that float16's take.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from foredraft.engine.linear import check_half

_LEVELS = 127
_LEAST = 1e-12  # of a scale: a row of zeros has one, too
_PRODUCT = torch.ops.quantized.linear_dynamic.default


class Int8Linear:
    """As `Linear` says, for layers whose inputs are not used again."""

    def __init__(self, weight: Tensor) -> None:
        """``weight``: [out_features, in_features].

        Raises:
            UnsupportedModel: a weight is not one that float16 could hold.
        """
        check_half(weight)
        self._packed = pack_rows(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """The numbers of ``x`` are used up."""
        # The product raises for what is not finite, and a row that is not must not end the pass.
        if len(x) == 1:
            return product(x.nan_to_num_(), self._packed)
        # One scale for all: a row must not be lost in it because another one is large.
        scales = x.abs().amax(dim=-1, keepdim=True)
        return product(x.div_(scales).nan_to_num_(), self._packed).mul_(scales)


def pack_rows(weight: Tensor) -> Any:
    """What `product` takes, of finite [out_features, in_features]."""
    steps = (weight.float().abs().amax(1) / _LEVELS).clamp_(min=_LEAST)
    levels = (weight.float() / steps[:, None]).round_().to(torch.int8)
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it will go one day: `has_int8`
        held = torch._make_per_channel_quantized_tensor(levels, steps.double(), zeros, 0)
    return torch.ops.quantized.linear_prepack(held, None)


def product(x: Tensor, packed: Any) -> Tensor:
    """float32 [rows, out_features], nearly right, for finite x [rows, in_features]."""
    made: Tensor = _PRODUCT(x, packed, True)  # with a bit less of the inputs
    return made


def has_int8() -> bool:
    """True where the library has that product and still makes what it takes."""
    return hasattr(torch, "_make_per_channel_quantized_tensor")
