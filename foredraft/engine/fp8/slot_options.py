"""How one sequence's tokens are chosen, written into its row of `SamplingOptions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np

from foredraft.engine.fp8.inputs import next_power
from foredraft.engine.fp8.upload import upload
from foredraft.limits import MAX_LOGIT_BIASES, MAX_STOP_TOKEN_IDS
from foredraft.params import SamplingParams
from kernels.sampling_options import IN_PROMPT, WRITTEN, SamplingOptions

_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is to be known of a sequence to choose its tokens.

    tokens: all so far, of which the first ``prompt_length`` are the prompt.
    ends: ids that end the text.
    """

    params: SamplingParams
    choice: int
    tokens: Sequence[int]
    prompt_length: int
    ends: frozenset[int]


def biases_at_most() -> int:
    """Entries of a row for what both public doors let in."""
    return next_power(MAX_LOGIT_BIASES)


def ends_at_most(eos: Sequence[int]) -> int:
    """The same for ids that end a text."""
    return next_power(MAX_STOP_TOKEN_IDS + len(eos))


def write_slot(options: SamplingOptions, slot: int, chosen: Chosen) -> None:
    """Write the row of a sequence that begins, or goes on, in ``slot``.

    Raises:
        ValueError: it has more biases or ends than a row has room for.
    """
    params, vocab = chosen.params, options.seen.shape[1]
    biases, ends = sorted(params.logit_bias.items()), sorted(chosen.ends)
    for name, values, room in (
        ("logit_bias", biases, options.biases.shape[1]),
        ("stop_token_ids", ends, options.end_ids.shape[1]),
    ):
        if len(values) > room:
            raise ValueError(f"{name} must have at most {room} entries, not {len(values)}")
    floats = (
        params.temperature,
        params.top_p,
        log(params.min_p) if params.min_p > 0.0 else -inf,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
    )
    whole = (
        params.seed & 0xFFFFFFFF,
        params.seed >> 32,
        chosen.choice,
        min(params.top_k, vocab),
        min(chosen.prompt_length + params.min_tokens, _MOST),
        len(biases),
        len(ends),
        0,  # log-probabilities: of the logits, and only of what is committed
    )
    upload(options.floats[slot], np.array(floats, np.float32))
    upload(options.ints[slot], np.array(whole, np.uint32).view(np.int32))
    if biases:
        ids, added = zip(*biases, strict=True)
        upload(options.bias_ids[slot, : len(ids)], np.array(ids, np.int32))
        upload(options.biases[slot, : len(ids)], np.array(added, np.float32))
    if ends:
        upload(options.end_ids[slot, : len(ends)], np.array(ends, np.int32))
    if params.penalized:
        upload(options.seen[slot], _seen(chosen, vocab))


def _seen(chosen: Chosen, vocab: int) -> np.ndarray:
    tokens = np.array(chosen.tokens, np.int64)
    counts = WRITTEN * np.bincount(tokens[chosen.prompt_length :], minlength=vocab)
    counts[tokens[: chosen.prompt_length]] += IN_PROMPT  # once, however often it is there
    return counts.astype(np.int32)
