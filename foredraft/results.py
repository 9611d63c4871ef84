"""What a user gets back, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TopLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a delivered token, and those of the best tokens at its place."""

    token_id: int
    logprob: float
    top: list[TopLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stats:
    """What speculation did for one answer.

    ``steps`` are passes of the target after the prompt; ``tokens_per_step`` is delivered tokens
    per step, the target's own included, and 0 before the first step; element d of
    ``accepted_by_depth`` counts the steps in which a guess of depth d + 1 was accepted;
    ``hit_steps`` are steps whose last token was in the tree; ``cached_tokens`` of the prompt were
    not computed again, because a prompt began alike before.
    """

    steps: int = 0
    tokens_per_step: float = 0.0
    accepted_by_depth: list[int] = field(default_factory=list)
    hit_steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    verified_nodes: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer. ``logprobs`` is None if none were asked for or no token came."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer. ``finish_reason`` is "stop", "length" or "cancelled".

    ``logprobs`` is None if none were asked for or the answer has no token.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    seed: int
    trace_id: str
    stats: Stats
    logprobs: list[TokenLogprob] | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the server answers with."""

    model_id: str
    vocab_size: int
    context_length: int
    eos_token_ids: list[int]
    dtype: str
    tokenizer_hash: str
