"""From what a user asks to what the workers do: defaults, checks, refusals."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace

from foredraft.chat_template import ChatTemplate
from foredraft.limits import MAX_PROMPT_LOGPROBS
from foredraft.params import (
    InvalidField,
    SamplingParams,
    Speculation,
    check_can_go_on,
    check_params,
    check_stops,
    check_tokens,
)
from foredraft.request import (
    ChatMessage,
    ChatPrompt,
    GenerateOptions,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
    refuse_unsupported,
    sampling_params,
)
from foredraft.wire.messages import ModelInfo, Source
from gateway.tokenizer import Tokenizer

_CHARACTERS_PER_TOKEN = 16  # a longer text cannot fit the context: refused before it is read
_SEED_BITS = 63
_SOURCES: dict[Speculation, frozenset[Source]] = {
    Speculation.OFF: frozenset(),
    Speculation.SUFFIX: frozenset({Source.SUFFIX}),
    Speculation.MODEL: frozenset({Source.MODEL}),
    Speculation.AUTO: frozenset({Source.SUFFIX, Source.MODEL}),
}
_SPECULATION = {sources: speculation for speculation, sources in _SOURCES.items()}


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that was checked and is ready to run: one choice of it.

    tenant: who asks, as drafters are told; see `Access.begin`.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    stops: tuple[str, ...]
    speculation: Speculation
    choice: int = 0
    score_prompt: bool = False
    tenant: int = 0

    @property
    def prompt_logprobs(self) -> int:
        """Log-probabilities of the prompt's tokens that are shown."""
        return len(self.prompt) * (1 + (self.params.logprobs or 0)) if self.score_prompt else 0


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
            InvalidField, Unsupported: it cannot be done as asked.
        """
        if request.model not in ("", model.model_id):
            raise InvalidField("model", f"{model.model_id} or empty")
        options = request.options
        refuse_unsupported(options)
        check_stops(options.stop)
        params = _params(options, model)
        prompt = await self._tokens(request.prompt, model)
        return Plan(
            prompt=prompt,
            params=_fit(params, model.context_length - len(prompt)),
            stops=options.stop,
            speculation=_allowed(options.speculation or Speculation.AUTO, self._speculation),
            score_prompt=request.score_prompt,
        )

    async def encode(
        self, prompt: Prompt, model: ModelInfo, *, special: bool = False
    ) -> tuple[int, ...]:
        """Token ids of a prompt, whether or not they fit the context.

        ``special`` adds the special tokens that the tokenizer puts around a text.

        Raises:
            InvalidField: the text is longer than any that could fit, or no chat.
        """
        match prompt:
            case TokenPrompt(ids):
                return ids
            case TextPrompt(text):
                _check_characters("prompt", len(text), model.context_length)
            case ChatPrompt(messages):
                _check_chat(messages, model.context_length)
                # Beside the event loop: how long a template takes is up to its author.
                text = await asyncio.to_thread(self._template.render, messages)
        return await self._tokenizer.encode(text, special=special)

    async def _tokens(self, prompt: Prompt, model: ModelInfo) -> tuple[int, ...]:
        tokens = await self.encode(prompt, model)
        if len(tokens) >= model.context_length:
            allowed = (
                f"at most {model.context_length - 1} tokens (the context of {model.model_id} "
                f"less one to answer with), not {len(tokens)}"
            )
            raise InvalidField(_field(prompt), allowed)
        check_tokens(_field(prompt), tokens, model.vocab_size)
        return tokens


def check_prompt_logprobs(count: int) -> None:
    """Raises InvalidField if there are more than one answer may hold."""
    if count > MAX_PROMPT_LOGPROBS:
        allowed = f"such that prompts with echo have at most {MAX_PROMPT_LOGPROBS} values"
        raise InvalidField("logprobs", f"{allowed}, not {count}")


def _params(options: GenerateOptions, model: ModelInfo) -> SamplingParams:
    """Checked parameters, with a random seed if there is none."""
    params = sampling_params(options)
    if options.seed is None:
        params = replace(params, seed=secrets.randbits(_SEED_BITS))
    if params.top_k >= model.vocab_size:
        params = replace(params, top_k=0)  # a filter that keeps everything
    check_params(params, model.vocab_size)
    check_can_go_on(params, model.eos_token_ids, model.vocab_size)
    return params


def _fit(params: SamplingParams, room: int) -> SamplingParams:
    """Cut the answer to what the context has room for; it then ends with "length"."""
    max_tokens = min(params.max_tokens, room)
    return replace(params, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens))


def _allowed(asked: Speculation, served: Speculation) -> Speculation:
    """The sources that both the request and the server allow."""
    return _SPECULATION[_SOURCES[asked] & _SOURCES[served]]


def _check_chat(messages: tuple[ChatMessage, ...], context_length: int) -> None:
    """A content may be empty, as protobuf shows one that was never set; a role may not."""
    if not all(message.role for message in messages):
        raise InvalidField("messages", "messages with a role of at least one character")
    size = sum(len(m.role) + len(m.content) + _TURN_CHARACTERS for m in messages)
    _check_characters("messages", size, context_length)


def _check_characters(name: str, count: int, context_length: int) -> None:
    limit = context_length * _CHARACTERS_PER_TOKEN
    if count > limit:
        raise InvalidField(name, f"at most {limit} characters, not {count}")


def _field(prompt: Prompt) -> str:
    """What its field is called at both doors."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"
