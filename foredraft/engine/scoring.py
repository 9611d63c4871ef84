"""Log-probabilities of tokens that are given, many rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import isfinite

import torch
from torch import Tensor

from foredraft.wire.messages import PromptLogprobs


@torch.inference_mode()
def score(logits: Tensor, tokens: Sequence[int], top: int) -> PromptLogprobs:
    """How likely ``tokens`` are after the rows of ``logits``, and the ``top`` best of each row.

    Args:
        logits: float32 [rows, vocab], one row per token.
    """
    norms = logits.logsumexp(dim=-1, keepdim=True)
    given = torch.tensor(tokens, dtype=torch.int64, device=logits.device).unsqueeze(1)
    chosen = (logits.gather(1, given) - norms).flatten().tolist()
    best = torch.topk(logits, min(top, logits.shape[1]))
    values = (best.values - norms).flatten().tolist()
    return PromptLogprobs(tuple(chosen), tuple(best.indices.flatten().tolist()), tuple(values))


def finite(logits: Tensor) -> bool:
    """True if a choice among them, or a score of them, means anything."""
    return all(isfinite(bound) for bound in logits.aminmax())  # quicker than all(isfinite)


def join(parts: Iterable[PromptLogprobs]) -> PromptLogprobs:
    """One after another."""
    listed = list(parts)
    return PromptLogprobs(
        tuple(chain.from_iterable(part.chosen for part in listed)),
        tuple(chain.from_iterable(part.top_ids for part in listed)),
        tuple(chain.from_iterable(part.top_values for part in listed)),
    )
