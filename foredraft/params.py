"""How the tokens of one choice are chosen: values, defaults and limits, checked in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
GREEDY_TEMPERATURE = 1e-3  # at or below it the noise is switched off: exactly greedy
_UINT64 = 2**64


class InvalidField(ValueError):
    """A request field holds a value that is not allowed; names the field and what is allowed."""

    def __init__(self, name: str, allowed: str) -> None:
        super().__init__(f"{name} must be {allowed}")
        self.field = name
        self.allowed = allowed


class Unsupported(ValueError):
    """A request asks for something this version does not do; it is refused, never ignored."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not supported")
        self.field = name


class Speculation(IntEnum):
    """Where guesses may come from. Values equal those on the wire."""

    OFF = 1
    SUFFIX = 2
    MODEL = 3
    AUTO = 4


class Schedule(IntEnum):
    """When a step of the target starts. Values equal those on the wire.

    AUTO waits for guesses no longer than they have been worth; SERIAL until they are complete.
    """

    AUTO = 1
    SERIAL = 2


class FinishReason(IntEnum):
    """Why a sequence ended. Values equal those on the wire."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target chooses tokens.

    ``seed`` is always set here: a door that gets none draws a random one.
    ``logprobs`` None = none; n = the chosen token's and those of the n best tokens.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def penalized(self) -> bool:
        """True if the logits depend on the tokens before them by more than the model."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def check_params(params: SamplingParams, vocab_size: int | None = None) -> SamplingParams:
    """Return ``params`` unchanged.

    Raises:
        InvalidField: a value is out of range; ids are checked only if ``vocab_size`` is known.
    """
    _check_count("max_tokens", params.max_tokens, 1)
    _check_count("min_tokens", params.min_tokens, 0)
    if params.min_tokens > params.max_tokens:
        raise InvalidField("min_tokens", f"at most max_tokens, which is {params.max_tokens}")
    _check_number("temperature", params.temperature, 0.0, 100.0)
    _check_number("top_p", params.top_p, 0.0, 1.0, open_low=True)
    _check_count("top_k", params.top_k, 0)
    _check_number("min_p", params.min_p, 0.0, 1.0)
    _check_number("repetition_penalty", params.repetition_penalty, 0.01, 100.0)
    _check_number("presence_penalty", params.presence_penalty, -100.0, 100.0)
    _check_number("frequency_penalty", params.frequency_penalty, -100.0, 100.0)
    if not 0 <= params.seed < _UINT64:
        raise InvalidField("seed", "a whole number from 0 to 2^64 - 1")
    if params.logprobs is not None:
        _check_count("logprobs", params.logprobs, 0, MAX_LOGPROBS)
    for token, bias in params.logit_bias.items():
        _check_token("logit_bias", token, vocab_size)
        _check_number("logit_bias", bias, -1000.0, 1000.0)
    for token in params.stop_token_ids:
        _check_token("stop_token_ids", token, vocab_size)
    return params


def check_tokens(name: str, tokens: tuple[int, ...], vocab_size: int) -> None:
    """Raises InvalidField if ``tokens`` is empty or holds an id outside the vocabulary."""
    if not tokens:
        raise InvalidField(name, "at least one token")
    for token in tokens:
        _check_token(name, token, vocab_size)


def _check_number(
    name: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    inside = math.isfinite(value) and (low < value if open_low else low <= value) and value <= high
    if not inside:
        start = "above" if open_low else "from"
        raise InvalidField(name, f"a number {start} {low:g} to {high:g}")


def _check_count(name: str, value: int, low: int, high: int = 2**31 - 1) -> None:
    if not low <= value <= high:
        allowed = f"a whole number from {low} to {high}" if high < 2**31 - 1 else f"at least {low}"
        raise InvalidField(name, allowed)


def _check_token(name: str, token: int, vocab_size: int | None) -> None:
    limit = 2**31 if vocab_size is None else vocab_size
    if not 0 <= token < limit:
        raise InvalidField(name, f"token ids from 0 to {limit - 1}")
