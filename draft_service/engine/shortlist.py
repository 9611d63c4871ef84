"""A head in two steps: int8 products find the best few, their float16 rows say how good they are.

Half of the head's bytes need not be read. An int8 product takes its inputs in 7 bits, which alone
would change every tenth best guess; what it finds among the best sixteen is what float16 finds.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from foredraft.engine.linear import check_half

SHORTLIST = 16
_LEVELS = 127


class ShortlistHead:
    """Maps hidden rows to logits that are nearly right; FBGEMM's product on x86."""

    def __init__(self, weight: Tensor) -> None:
        """``weight``: [vocab, hidden]. Raises UnsupportedModel where float16 cannot hold it."""
        check_half(weight)
        self._rows = weight.half()
        steps = (weight.float().abs().amax(1) / _LEVELS).clamp_(min=1e-12)
        levels = (weight.float() / steps[:, None]).round_().to(torch.int8)
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it will go one day: `has_shortlist`
            held = torch._make_per_channel_quantized_tensor(levels, steps.double(), zeros, 0)
        self._packed = torch.ops.quantized.linear_prepack(held, None)

    def __call__(self, x: Tensor) -> Tensor:
        # A row that is not finite must not end the pass. The last argument takes a bit of the
        # inputs away: without VNNI, sums of two products would overflow.
        product: Tensor = _PRODUCT(x.nan_to_num(), self._packed, True)
        return product

    def exact(self, x: Tensor, places: Tensor) -> Tensor:
        """Logits at ``places`` [rows, n] for x [rows, hidden]: float32 [rows, n]."""
        rows = self._rows.index_select(0, places.reshape(-1)).float().view(*places.shape, -1)
        return torch.bmm(rows, x[:, :, None])[:, :, 0]


def has_shortlist() -> bool:
    """True where the library has that product and still makes what it takes."""
    return hasattr(torch, "_make_per_channel_quantized_tensor")


_PRODUCT = torch.ops.quantized.linear_dynamic.default
