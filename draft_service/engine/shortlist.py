"""A head in two steps: int8 products find the best few, their float16 rows say how good they are.

Half of the head's bytes need not be read. Inputs in 7 bits alone would change every tenth best
guess; what they find among the best sixteen is what float16 finds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draft_service.engine.int8 import pack_rows, product
from foredraft.engine.linear import check_half

SHORTLIST = 16


class ShortlistHead:
    """Maps hidden rows to logits that are nearly right."""

    def __init__(self, weight: Tensor) -> None:
        """``weight``: [vocab, hidden]. Raises UnsupportedModel where float16 cannot hold it."""
        check_half(weight)
        self._rows = weight.half()
        self._packed = pack_rows(weight)

    def __call__(self, x: Tensor) -> Tensor:
        # A row that is not finite must not end the pass.
        return product(x.nan_to_num(), self._packed)

    def exact(self, x: Tensor, places: Tensor) -> Tensor:
        """Logits at ``places`` [rows, n] for x [rows, hidden]: float32 [rows, n]."""
        rows = self._rows.index_select(0, places.reshape(-1)).float().view(*places.shape, -1)
        return torch.bmm(rows, x[:, :, None])[:, :, 0]
