"""How the tokens of one choice are chosen: values, defaults and limits, checked in one place."""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from numbers import Real
from types import MappingProxyType
from typing import Any

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
GREEDY_TEMPERATURE = 1e-3  # at or below it the noise is switched off: exactly greedy


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


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a number may take, both ends included.

    ``open_low`` leaves out ``low`` itself. Numbers that are not ``whole`` are rounded to float32
    before they are compared: that is how they cross the wire.
    """

    low: float
    high: float
    whole: bool = True
    open_low: bool = False

    def read(self, name: str, value: Any) -> Any:
        """``value`` as a plain int or float.

        Raises:
            InvalidField: it is no number of this kind (True and False are none) or out of range.
        """
        number = None if isinstance(value, bool) else self._number(value)
        # A comparison with NaN is false, too.
        if number is None or not self._low() <= number <= self.high:
            raise InvalidField(name, str(self))
        if self.open_low and number == self.low:
            raise InvalidField(name, str(self))
        return number

    def __str__(self) -> str:
        if self.whole:
            return f"a whole number from {self.low} to {_shown(int(self.high))}"
        return f"a number {'above' if self.open_low else 'from'} {self.low:g} to {self.high:g}"

    def _number(self, value: Any) -> float | None:
        try:
            if self.whole:
                return operator.index(value)
            return _float32(float(value)) if isinstance(value, Real) else None
        except (TypeError, ValueError, OverflowError):
            return None

    def _low(self) -> float:
        return self.low if self.whole else _float32(self.low)


def _float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def _shown(high: int) -> str:
    """Large limits are powers of two less one, which say more when written so."""
    return f"2^{high.bit_length()} - 1" if high > 2**20 and high & (high + 1) == 0 else str(high)


_COUNT = 2**31 - 1
RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "max_tokens": Range(1, _COUNT),
        "min_tokens": Range(0, _COUNT),
        "temperature": Range(0.0, 100.0, whole=False),
        "top_p": Range(0.0, 1.0, whole=False, open_low=True),
        "top_k": Range(0, 2**63 - 1),
        "min_p": Range(0.0, 1.0, whole=False),
        "repetition_penalty": Range(0.01, 100.0, whole=False),
        "presence_penalty": Range(-100.0, 100.0, whole=False),
        "frequency_penalty": Range(-100.0, 100.0, whole=False),
        "seed": Range(0, 2**64 - 1),
        "logprobs": Range(0, MAX_LOGPROBS),
    }
)
BIAS = Range(-1000.0, 1000.0, whole=False)


class Speculation(IntEnum):
    """Where guesses may come from. Values equal those on the wire."""

    OFF = 1
    SUFFIX = 2
    MODEL = 3
    AUTO = 4


class Schedule(IntEnum):
    """When a step of the target starts. Values equal those on the wire.

    HELD waits for guesses no longer than they have been worth, SERIAL until they are complete,
    FREE never. AUTO is the one of these, or none with guesses, that has brought the most.
    """

    AUTO = 1
    SERIAL = 2
    HELD = 3
    FREE = 4


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

    ``logit_bias`` is finite and added, so it forbids nothing: with one bias on every token they
    rank as before, but for rounding. Only ``min_tokens`` forbids: EOS and stop ids cannot come
    before it is reached, and a request in which they are the whole vocabulary is refused
    (`check_can_go_on`).
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

    @property
    def filtered(self) -> bool:
        """True if only some of the tokens can be chosen, by how likely they are."""
        filters = self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0
        return filters and not self.greedy

    @property
    def plain(self) -> bool:
        """True if the best token of the logits is always the one to choose."""
        return self.greedy and not (self.penalized or self.logit_bias or self.min_tokens)

    def ends(self, eos: Iterable[int]) -> frozenset[int]:
        """Ids that end the text; ``eos`` are those of the model."""
        return frozenset(self.stop_token_ids) | frozenset(() if self.ignore_eos else eos)


def check_params(params: SamplingParams, vocab_size: int | None = None) -> SamplingParams:
    """Return ``params`` unchanged.

    Raises:
        InvalidField: a value is out of range; ids are checked only if ``vocab_size`` is known.
    """
    for name, allowed in RANGES.items():
        value = getattr(params, name)
        if value is not None:
            allowed.read(name, value)
    check_min_tokens(params.min_tokens, params.max_tokens)
    for token, bias in params.logit_bias.items():
        _check_token("logit_bias", token, vocab_size)
        BIAS.read("logit_bias", bias)
    for token in params.stop_token_ids:
        _check_token("stop_token_ids", token, vocab_size)
    return params


def check_min_tokens(min_tokens: int, max_tokens: int) -> None:
    """Raises InvalidField if the least is more than the most."""
    if min_tokens > max_tokens:
        raise InvalidField("min_tokens", f"at most max_tokens, which is {max_tokens}")


def check_stops(stops: Sequence[str]) -> None:
    """Raises InvalidField if there are too many stop strings or one is empty."""
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidField("stop", f"at most {MAX_STOP_STRINGS} strings, not {len(stops)}")
    if not all(stops):
        raise InvalidField("stop", "strings of at least one character")


def check_can_go_on(params: SamplingParams, eos: Sequence[int], vocab_size: int) -> None:
    """Raises InvalidField if ``min_tokens`` forbids every token that the vocabulary has."""
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
    if params.min_tokens > 0 and ends.issuperset(range(vocab_size)):
        allowed = (
            f"fewer ids than all {vocab_size} of the vocabulary, EOS included, if min_tokens is "
            "above 0: no token could come"
        )
        raise InvalidField("stop_token_ids", allowed)


def check_tokens(name: str, tokens: tuple[int, ...], vocab_size: int) -> None:
    """Raises InvalidField if ``tokens`` is empty or holds an id outside the vocabulary."""
    if not tokens:
        raise InvalidField(name, "at least one token")
    for token in tokens:
        _check_token(name, token, vocab_size)


def _check_token(name: str, token: int, vocab_size: int | None) -> None:
    limit = 2**31 if vocab_size is None else vocab_size
    if not 0 <= token < limit:
        raise InvalidField(name, f"token ids from 0 to {limit - 1}")
