"""Cross-entropy of the draft against the target's whole distribution.

    loss = mean over rows of  -Σ_id  p(id) · log q(id),   p = softmax(target), q = softmax(draft)

Its gradient with respect to the draft's logits is (q - p) / rows. The head is frozen, so only the
draft's hidden rows need a gradient: it is computed with the loss, piece by piece, and logits of all
rows are never there at once. What it costs is memory traffic, so nothing is written that could be
computed on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# Of one piece; three of that size are there at once, in float32. A GPU has the memory, and what it
# waits for is the next launch.
MOST_LOGITS, MOST_LOGITS_GPU = 2**25, 2**27


def pieces(rows: int, head: Tensor) -> Iterator[slice]:
    """Cuts rows such that a piece has at most so many logits, or one row."""
    most = MOST_LOGITS_GPU if head.is_cuda else MOST_LOGITS
    size = max(1, most // len(head))
    for first in range(0, rows, size):
        yield slice(first, first + size)


def distillation_loss(draft: Tensor, target: Tensor, head: Tensor) -> Tensor:
    """The mean over rows, a scalar that gradients flow through to ``draft``.

    Args:
        draft, target: hidden rows [rows, hidden] behind the last norms; at least one row.
        head: [vocabulary, hidden], of both; its type is that of the products.
    """
    apply: Any = _Distillation.apply
    loss: Tensor = apply(draft, target, head)
    return loss


class _Distillation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, draft: Tensor, target: Tensor, head: Tensor) -> Tensor:
        rows, total = len(draft), draft.new_zeros((), dtype=torch.float32)
        gradient = torch.empty_like(draft)
        for piece in pieces(rows, head):
            wanted = _logits(target[piece], head).softmax(dim=-1)
            logs = _logits(draft[piece], head).log_softmax(dim=-1)
            total -= torch.dot(wanted.flatten(), logs.flatten())
            wrong = torch.empty_like(logs, dtype=head.dtype)
            torch.sub(logs.exp_(), wanted, out=wrong)  # rounds to its type at once
            gradient[piece] = (wrong @ head).to(draft.dtype).div_(rows)
        ctx.save_for_backward(gradient)
        return total / rows

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None


def _logits(rows: Tensor, head: Tensor) -> Tensor:
    """Always float32: a logit of 20 in bfloat16 would be off by up to 0.06."""
    rows = rows.to(head.dtype)
    if head.is_cuda and head.dtype != torch.float32:  # elsewhere no product widens
        return torch.mm(rows, head.t(), out_dtype=torch.float32)
    return functional.linear(rows, head).float()
