"""What both clients share: how an SDK call becomes a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from foredraft.params import InvalidField, Speculation
from foredraft.request import (
    ChatMessage,
    ChatPrompt,
    GenerateOptions,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)

PromptLike = str | Iterable[int]
Messages = Iterable[Mapping[str, str]]

CONNECT_SECONDS = 10.0  # a server that is not reached by then is not there

OPTION_NAMES = frozenset(option.name for option in fields(GenerateOptions))


def build_request(
    prompt: PromptLike | None, messages: Messages | None, model: str, options: dict[str, Any]
) -> GenerateRequest:
    """A request from what the user wrote.

    Raises:
        TypeError: an option is unknown, or prompt and messages are both given or both missing.
        InvalidField: a value is not of its option's kind.
    """
    unknown = sorted(options.keys() - OPTION_NAMES)
    if unknown:
        known = ", ".join(sorted(OPTION_NAMES))
        raise TypeError(f"unknown option {unknown[0]!r}; the options are {known}")
    if (prompt is None) == (messages is None):
        raise TypeError("exactly one of prompt and messages must be given")
    chosen = _prompt(prompt) if prompt is not None else _chat(messages or ())
    return GenerateRequest(chosen, _options(options), model)


def _prompt(prompt: PromptLike) -> Prompt:
    return TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(tuple(prompt))


def _chat(messages: Messages) -> ChatPrompt:
    return ChatPrompt(tuple(_message(message) for message in messages))


def _message(message: Mapping[str, str]) -> ChatMessage:
    if set(message) != {"role", "content"}:
        raise InvalidField("messages", 'mappings with "role" and "content" and nothing else')
    return ChatMessage(message["role"], message["content"])


def _options(options: dict[str, Any]) -> GenerateOptions:
    given = {name: value for name, value in options.items() if value is not None}
    if "stop" in given:
        stop = given["stop"]
        given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if "speculation" in given:
        given["speculation"] = _speculation(given["speculation"])
    return GenerateOptions(**given)


def _speculation(value: str | Speculation) -> Speculation:
    if isinstance(value, Speculation):
        return value
    names = {member.name.lower(): member for member in Speculation}
    if value not in names:
        raise InvalidField("speculation", f"one of {', '.join(names)}, not {value!r}")
    return names[value]
