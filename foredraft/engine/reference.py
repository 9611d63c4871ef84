"""The whole algorithm on one screen: the oracle that the services are tested against.

No batches, no memory management, no processes: the target is a function from tokens to logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from foredraft.engine.sampling import SampledRow, choose
from foredraft.params import FinishReason, SamplingParams

Target = Callable[[Sequence[int]], Tensor]  # tokens -> logits [vocab] of the token after them
Drafter = Callable[[Sequence[int]], Sequence[Sequence[int]]]  # tokens -> guessed continuations


@dataclass(frozen=True, slots=True)
class Reference:
    tokens: tuple[int, ...]
    finish: FinishReason
    steps: int


def generate(
    target: Target,
    draft: Drafter,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    eos: tuple[int, ...],
    context_length: int,
    choice: int = 0,
) -> Reference:
    """Decode with guesses. The tokens do not depend on ``draft``; only ``steps`` does."""
    tokens, steps = list(prompt), 0
    stops = params.ends(eos)
    while True:
        steps += 1
        guesses = {tuple(guess[: end + 1]) for guess in draft(tokens) for end in range(len(guess))}
        path: tuple[int, ...] = ()  # accepted nodes below the root
        while True:
            row = SampledRow(params, choice, len(tokens), len(prompt), tokens)
            [token] = choose(target(tokens)[None], [row], eos)
            if token in stops:
                return Reference(tuple(tokens[len(prompt) :]), FinishReason.STOP, steps)
            tokens.append(token)
            path += (token,)
            if len(tokens) - len(prompt) == params.max_tokens or len(tokens) == context_length:
                return Reference(tuple(tokens[len(prompt) :]), FinishReason.LENGTH, steps)
            if path not in guesses:
                break
