"""The body of a chat completion."""

from __future__ import annotations

from typing import Any

from foredraft.call import read_text
from foredraft.limits import MAX_MESSAGES, check_count
from foredraft.params import RANGES, InvalidField, Unsupported
from gateway.http.bounds import Bounds
from gateway.http.fields import Fields, read_flag
from gateway.http.options import (
    Asked,
    make_request,
    read_choices,
    read_model,
    read_options,
    read_streaming,
)

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}
MAX_PARTS = 1_024  # of one message
_CONTENT = "a text or a list of parts of type text"


def read_chat(fields: Fields, bounds: Bounds) -> Asked:
    """Check a body.

    Raises:
        InvalidField, Unsupported, HttpFault: something in it cannot be done.
    """
    model = read_model(fields)
    messages = fields.required("messages", read_messages)
    max_tokens, logprobs = _max_tokens(fields), _logprobs(fields)
    choices, streaming = read_choices(fields), read_streaming(fields)
    bounds.check_choices(1, choices)
    options = read_options(fields)
    options |= {"max_tokens": max_tokens, "logprobs": logprobs}
    return Asked((make_request(None, messages, options),), choices, streaming, model)


def read_messages(name: str, value: Any) -> list[dict[str, str]]:
    """Messages with their parts of text joined by line ends."""
    if not isinstance(value, list):
        raise InvalidField(name, "a list of messages")
    check_count(name, value, MAX_MESSAGES, "messages")
    return [_message(f"{name}[{index}]", message) for index, message in enumerate(value)]


def _message(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidField(name, "an object")
    fields = Fields(value, f"{name}.")
    fields.refuse(_UNSUPPORTED)
    role = fields.required("role", read_text)
    content = fields.required("content", _content)
    fields.end()
    return {"role": role, "content": content}


def _content(name: str, value: Any) -> str:
    if isinstance(value, str):
        return read_text(name, value)
    if not isinstance(value, list):
        raise InvalidField(name, _CONTENT)
    check_count(name, value, MAX_PARTS, "parts")
    return "\n".join(_part(f"{name}[{index}]", part) for index, part in enumerate(value))


def _part(name: str, value: Any) -> str:
    if not isinstance(value, dict):
        raise InvalidField(name, "an object of type text")
    fields = Fields(value, f"{name}.")
    if fields.required("type", read_text) != "text":
        raise Unsupported(fields.name("type"))
    text = fields.required("text", read_text)
    fields.end()
    return text


def _max_tokens(fields: Fields) -> int:
    """The newer name or the older; without either, as many as the context has room for."""
    allowed = RANGES["max_tokens"]
    newer = fields.read("max_completion_tokens", allowed.read, None)
    older = fields.read("max_tokens", allowed.read, None)
    if newer is not None and older not in (None, newer):
        raise InvalidField("max_tokens", f"absent or max_completion_tokens, which is {newer}")
    found = older if newer is None else newer
    return int(allowed.high) if found is None else int(found)


def _logprobs(fields: Fields) -> int | None:
    on = fields.read("logprobs", read_flag, False)
    top = fields.read("top_logprobs", RANGES["logprobs"].read, None)
    if top is not None and not on:
        raise InvalidField("top_logprobs", "absent unless logprobs is true")
    return (top or 0) if on else None
