"""How the tokens of each slot are chosen, as the kernels read it.

One slot is one choice of one request. A column of ``floats`` or ``ints`` is one option; the host
writes a slot's row when a sequence opens, and `kernels.tree_accept` counts what it writes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

GREEDY_TEMPERATURE = tl.constexpr(1e-3)  # at or below it there is no noise and no filter

# Columns of `SamplingOptions.floats`. LOG_MIN_P is -inf where min-p is off.
TEMPERATURE, TOP_P, LOG_MIN_P, REPETITION, FREQUENCY, PRESENCE = map(tl.constexpr, range(6))
FLOATS = tl.constexpr(6)

# Columns of `SamplingOptions.ints`. TOP_K 0 is off. Ends cannot be chosen for positions before
# FIRST_END, prompt length + min_tokens. LOGPROBS is 1 where log-probabilities are wanted.
SEED_LOW, SEED_HIGH, CHOICE, TOP_K, FIRST_END, BIASES, ENDS, LOGPROBS = map(tl.constexpr, range(8))
INTS = tl.constexpr(8)

IN_PROMPT, WRITTEN = 1, 2  # what a token of the prompt and one of the output add to ``seen``


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """S slots, V tokens, up to B biases and E ends (EOS and stop ids) per slot.

    floats: float32 [S, FLOATS]. ints: int32 [S, INTS].
    bias_ids, biases: int32 and float32 [S, B], ids ascending; the first ints[:, BIASES] count.
    end_ids: int32 [S, E], ascending; the first ints[:, ENDS] count.
    seen: int32 [S, V], 2 * times written + 1 if the prompt has it; read only under penalties.
    """

    floats: Tensor
    ints: Tensor
    bias_ids: Tensor
    biases: Tensor
    end_ids: Tensor
    seen: Tensor

    @classmethod
    def empty(
        cls, slots: int, vocab: int, biases: int, ends: int, device: torch.device
    ) -> SamplingOptions:
        """All slots greedy. ``biases`` and ``ends`` must be powers of two (ValueError)."""
        for name, size in (("biases", biases), ("ends", ends)):
            if size < 1 or size & (size - 1):
                raise ValueError(f"{name} must be a power of two, not {size}")
        floats = torch.tensor([0.0, 1.0, -torch.inf, 1.0, 0.0, 0.0], device=device)
        whole = torch.int32
        return cls(
            floats=floats.repeat(slots, 1),
            ints=torch.zeros(slots, INTS.value, dtype=whole, device=device),
            bias_ids=torch.zeros(slots, biases, dtype=whole, device=device),
            biases=torch.zeros(slots, biases, device=device),
            end_ids=torch.zeros(slots, ends, dtype=whole, device=device),
            seen=torch.zeros(slots, vocab, dtype=whole, device=device),
        )
