"""What a user asks for, as plain values: the same for every door and for the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from foredraft.params import RANGES, InvalidField, SamplingParams, Speculation, Unsupported

_REFUSED = ("grammar", "json_schema", "adapter")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    messages: tuple[ChatMessage, ...]


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """None means that the server's default holds. Names are those of the public protocol."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    speculation: Speculation | None = None
    grammar: str | None = None
    json_schema: str | None = None
    adapter: str | None = None
    lossy_threshold: float | None = None
    lossless: bool | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """``model`` empty means the served model; ``score_prompt`` asks for the log-probabilities of
    the prompt's own tokens, with as many of the best as there are at the answer's."""

    prompt: Prompt
    options: GenerateOptions = field(default_factory=GenerateOptions)
    model: str = ""
    score_prompt: bool = False


def refuse_unsupported(options: GenerateOptions) -> None:
    """Refuse what no version does yet, whatever its value is.

    Raises:
        Unsupported, InvalidField: such an option is there, or it contradicts ``lossless``.
    """
    for name in _REFUSED:
        if getattr(options, name) is not None:
            raise Unsupported(name)
    if options.lossy_threshold is not None:
        if options.lossless:
            raise InvalidField("lossy_threshold", "absent when lossless is true")
        raise Unsupported("lossy_threshold")


def sampling_params(options: GenerateOptions) -> SamplingParams:
    """The options with a default for each that is not there, not checked."""
    given = {name: value for name in RANGES if (value := getattr(options, name)) is not None}
    return SamplingParams(
        **given,
        logit_bias=options.logit_bias,
        stop_token_ids=options.stop_token_ids,
        ignore_eos=options.ignore_eos,
    )
