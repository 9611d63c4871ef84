"""From what a user asks to what the workers do: defaults, checks, refusals."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from foredraft.params import (
    MAX_STOP_STRINGS,
    InvalidField,
    SamplingParams,
    Speculation,
    Unsupported,
    check_params,
    check_tokens,
)
from foredraft.request import (
    ChatPrompt,
    GenerateOptions,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from foredraft.wire.errors import NotFound
from foredraft.wire.messages import ModelInfo, Source
from gateway.chat_template import ChatTemplate
from gateway.tokenizer import Tokenizer

_CHARACTERS_PER_TOKEN = 16  # a longer text cannot fit the context: refused before it is read
_SEED_BITS = 63
_PARAM_NAMES = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
_SOURCES: dict[Speculation, frozenset[Source]] = {
    Speculation.OFF: frozenset(),
    Speculation.SUFFIX: frozenset({Source.SUFFIX}),
    Speculation.MODEL: frozenset({Source.MODEL}),
    Speculation.AUTO: frozenset({Source.SUFFIX, Source.MODEL}),
}
_SPECULATION = {sources: speculation for speculation, sources in _SOURCES.items()}


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that was checked and is ready to run."""

    prompt: tuple[int, ...]
    params: SamplingParams
    stops: tuple[str, ...]
    speculation: Speculation


# What a turn costs at least beside its words: templates wrap every message.
_TURN_CHARACTERS = 16


class Planner:
    """Makes plans for one served model; ``speculation`` names the sources a request may use."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, speculation: Speculation
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._speculation = speculation

    async def plan(self, request: GenerateRequest, model: ModelInfo) -> Plan:
        """Check a request against the model that is to answer it.

        Raises:
            InvalidField, Unsupported, NotFound: it cannot be done as asked.
        """
        if request.model not in ("", model.model_id):
            raise NotFound(f"model must be {model.model_id} or empty")
        options = request.options
        _refuse_unsupported(options)
        _check_stops(options.stop)
        params = _params(options, model.vocab_size)
        prompt = await self._tokens(request.prompt, model)
        return Plan(
            prompt=prompt,
            params=_fit(params, model.context_length - len(prompt)),
            stops=options.stop,
            speculation=_allowed(options.speculation or Speculation.AUTO, self._speculation),
        )

    async def _tokens(self, prompt: Prompt, model: ModelInfo) -> tuple[int, ...]:
        match prompt:
            case TokenPrompt(ids):
                tokens = ids
            case TextPrompt(text):
                _check_characters(len(text), model.context_length)
                tokens = await self._tokenizer.encode(text)
            case ChatPrompt(messages):
                size = sum(
                    len(message.role) + len(message.content) + _TURN_CHARACTERS
                    for message in messages
                )
                _check_characters(size, model.context_length)
                tokens = await self._tokenizer.encode(self._template.render(messages))
        if len(tokens) >= model.context_length:
            allowed = (
                f"at most {model.context_length - 1} tokens (the context of {model.model_id} "
                f"less one to answer with), not {len(tokens)}"
            )
            raise InvalidField("prompt", allowed)
        check_tokens("prompt", tokens, model.vocab_size)
        return tokens


def _refuse_unsupported(options: GenerateOptions) -> None:
    for name in ("grammar", "json_schema", "adapter"):
        if getattr(options, name):
            raise Unsupported(name)
    if options.lossy_threshold is not None:
        if options.lossless:
            raise InvalidField("lossy_threshold", "absent when lossless is true")
        raise Unsupported("lossy_threshold")


def _check_stops(stops: tuple[str, ...]) -> None:
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidField("stop", f"at most {MAX_STOP_STRINGS} strings")
    if not all(stops):
        raise InvalidField("stop", "strings of at least one character")


def _params(options: GenerateOptions, vocab_size: int) -> SamplingParams:
    """Checked parameters, with a random seed if there is none."""
    given = {name: value for name in _PARAM_NAMES if (value := getattr(options, name)) is not None}
    given.setdefault("seed", secrets.randbits(_SEED_BITS))
    if given.get("top_k", 0) >= vocab_size:
        given["top_k"] = 0  # a filter that keeps everything
    params = SamplingParams(
        **given,
        logit_bias=options.logit_bias,
        stop_token_ids=options.stop_token_ids,
        ignore_eos=options.ignore_eos,
        logprobs=options.logprobs,
    )
    return check_params(params, vocab_size)


def _fit(params: SamplingParams, room: int) -> SamplingParams:
    """Cut the answer to what the context has room for; it then ends with "length"."""
    max_tokens = min(params.max_tokens, room)
    return replace(params, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens))


def _allowed(asked: Speculation, served: Speculation) -> Speculation:
    """The sources that both the request and the server allow."""
    return _SPECULATION[_SOURCES[asked] & _SOURCES[served]]


def _check_characters(count: int, context_length: int) -> None:
    limit = context_length * _CHARACTERS_PER_TOKEN
    if count > limit:
        raise InvalidField("prompt", f"at most {limit} characters, not {count}")
