"""What both clients share: how an SDK call becomes a request, checked before it is sent.

A value of the wrong kind is refused here by the name of its field: protobuf would take some for
another thing (None for an empty text, bytes for numbers) and tell of others in its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set, Sized
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import grpc

from foredraft import limits, params
from foredraft.errors import Unsupported
from foredraft.params import BIAS, RANGES, InvalidField, Range, Speculation
from foredraft.request import (
    ChatMessage,
    ChatPrompt,
    GenerateOptions,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
    refuse_unsupported,
)

PromptLike = str | Iterable[int]
Messages = Iterable[Mapping[str, str]]

CONNECT_SECONDS = 10.0  # a server that is not reached by then is not there

OPTION_NAMES = frozenset(option.name for option in fields(GenerateOptions))

_TOKEN = Range(0, 2**31 - 1)
_SECONDS = Range(0.0, 1e9, whole=False)
_TEXT = "text that UTF-8 can hold (a str without lone surrogates)"
_TOKENS = f"a list of token ids, each {_TOKEN}"
_MESSAGES = 'a list of mappings with "role" and "content" and nothing else, both str'


def build_request(
    prompt: PromptLike | None, messages: Messages | None, model: str, options: dict[str, Any]
) -> GenerateRequest:
    """A request from what the user wrote; an option that is None counts as not given.

    Raises:
        TypeError: an option is unknown, or prompt and messages are both given or both missing.
        InvalidField: a value is not of its option's kind or out of its range.
        Unsupported: an option is one that is not done yet.
    """
    unknown = sorted(options.keys() - OPTION_NAMES)
    if unknown:
        known = ", ".join(sorted(OPTION_NAMES))
        raise TypeError(f"unknown option {unknown[0]!r}; the options are {known}")
    if (prompt is None) == (messages is None):
        raise TypeError("exactly one of prompt and messages must be given")
    chosen = _chat(messages) if prompt is None else read_prompt(prompt)
    return GenerateRequest(chosen, _options(options), read_text("model", model))


def read_prompt(prompt: Any) -> Prompt:
    """A text or token ids; raises InvalidField if it is neither."""
    if isinstance(prompt, str):
        return TextPrompt(read_text("prompt", prompt))
    allowed = f"a text or {_TOKENS}"
    return TokenPrompt(_tokens("prompt", prompt, allowed, limits.MAX_PROMPT_TOKENS))


def read_text(name: str, value: Any) -> str:
    """``value`` if it is a str that can be sent; raises InvalidField if not."""
    if not isinstance(value, str):
        raise InvalidField(name, f"{_TEXT}, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidField(name, _TEXT) from None
    return value


def read_seconds(name: str, value: Any) -> float:
    """``value`` as a time in seconds; raises InvalidField if it is none."""
    seconds: float = _read(_SECONDS, name, value, f"{_SECONDS}, in seconds")
    return seconds


def read_timeout(value: Any) -> float | None:
    """As `read_seconds`; None is no limit."""
    return None if value is None else read_seconds("timeout", value)


def key_metadata(api_key: Any) -> tuple[tuple[str, str], ...]:
    """What every call carries for a server that wants a key; raises InvalidField if it is none.

    The error does not hold the key.
    """
    if api_key is None:
        return ()
    printable = isinstance(api_key, str) and api_key.isascii() and api_key.isprintable()
    if not printable or not api_key or " " in api_key:
        raise InvalidField("api_key", "printable ASCII without spaces")
    return (("authorization", f"Bearer {api_key}"),)


def check_open(closed: bool) -> None:
    """Raises InvalidField if the client was closed."""
    if closed:
        raise InvalidField("client", "open: close() was called")


def _chat(messages: Any) -> ChatPrompt:
    turns = _items("messages", messages, _MESSAGES, limits.MAX_MESSAGES, "messages")
    return ChatPrompt(tuple(_message(turn) for turn in turns))


def _message(message: Any) -> ChatMessage:
    if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
        raise InvalidField("messages", _MESSAGES)
    for key in ("role", "content"):
        if not isinstance(message[key], str):
            raise InvalidField("messages", f"{_MESSAGES}; {key} is {type(message[key]).__name__}")
    return ChatMessage(*(read_text("messages", message[key]) for key in ("role", "content")))


def _options(options: dict[str, Any]) -> GenerateOptions:
    given = {name: value for name, value in options.items() if value is not None}
    for name, read in _READERS.items():
        if name in given:
            given[name] = read(name, given[name])
    read_options = GenerateOptions(**given)
    try:
        refuse_unsupported(read_options)
    except params.Unsupported as error:
        raise _unsupported(error) from None
    if read_options.min_tokens is not None and read_options.max_tokens is not None:
        params.check_min_tokens(read_options.min_tokens, read_options.max_tokens)
    return read_options


def _unsupported(error: params.Unsupported) -> Unsupported:
    """The same error that the server would answer with."""
    refused = Unsupported(str(error), grpc.StatusCode.UNIMPLEMENTED.name)
    refused.field = error.field
    return refused


def _number(name: str, value: Any) -> Any:
    return RANGES[name].read(name, value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidField(name, "True or False")
    return value


def _stops(name: str, value: Any) -> tuple[str, ...]:
    allowed, most = "a text or a list of texts", params.MAX_STOP_STRINGS
    values = (value,) if isinstance(value, str) else _items(name, value, allowed, most, "strings")
    if not all(isinstance(stop, str) for stop in values):
        raise InvalidField(name, allowed)
    stops = tuple(read_text(name, stop) for stop in values)
    params.check_stops(stops)
    return stops


def _bias(name: str, value: Any) -> Mapping[int, float]:
    allowed = f"a dict from token ids, each {_TOKEN}, to biases, each {BIAS}"
    if not isinstance(value, Mapping):
        raise InvalidField(name, allowed)
    limits.check_count(name, value, limits.MAX_LOGIT_BIASES, "entries")
    return MappingProxyType(
        {
            _read(_TOKEN, name, token, allowed): _read(BIAS, name, bias, allowed)
            for token, bias in value.items()
        }
    )


def _stop_ids(name: str, value: Any) -> tuple[int, ...]:
    return _tokens(name, value, _TOKENS, limits.MAX_STOP_TOKEN_IDS)


def _tokens(name: str, value: Any, allowed: str, most: int) -> tuple[int, ...]:
    tokens = _items(name, value, allowed, most, "token ids")
    # As nearly always, and many times faster to see than one by one.
    plain = set(map(type, tokens)) == {int}
    if plain and min(tokens) >= _TOKEN.low and max(tokens) <= _TOKEN.high:
        return tokens
    return tuple(_read(_TOKEN, name, token, allowed) for token in tokens)


def _items(name: str, value: Any, allowed: str, most: int, what: str) -> tuple[Any, ...]:
    """The items of something like a list; texts, bytes, mappings and sets are not."""
    if not isinstance(value, str | bytes | bytearray | memoryview | Mapping | Set):
        if isinstance(value, Sized):
            limits.check_count(name, value, most, what)
        try:
            items = tuple(value)
        except TypeError:
            pass
        else:
            limits.check_count(name, items, most, what)
            return items
    raise InvalidField(name, f"{allowed}; not {type(value).__name__}")


def _read(kind: Range, name: str, value: Any, allowed: str) -> Any:
    """One of several values of a field, whose error has to tell of the whole field."""
    try:
        return kind.read(name, value)
    except InvalidField:
        raise InvalidField(name, allowed) from None


def _speculation(name: str, value: Any) -> Speculation:
    if isinstance(value, Speculation):
        return value
    names = {member.name.lower(): member for member in Speculation}
    if not isinstance(value, str) or value not in names:
        raise InvalidField(name, f"one of {', '.join(names)}")
    return names[value]


_READERS: Mapping[str, Callable[[str, Any], Any]] = MappingProxyType(
    {
        **dict.fromkeys(RANGES, _number),
        "logit_bias": _bias,
        "stop": _stops,
        "stop_token_ids": _stop_ids,
        "ignore_eos": _flag,
        "lossless": _flag,
        "speculation": _speculation,
    }
)
