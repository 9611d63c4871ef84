"""The fields that completions and chats have in common, as options of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foredraft.call import OPTION_NAMES, build_request, read_text
from foredraft.limits import MAX_LOGIT_BIASES, check_count
from foredraft.params import InvalidField, Range
from foredraft.request import GenerateRequest
from gateway.http.fields import Fields, read_flag

# Fields of OpenAI's protocol that ask for what is not done, with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
# Names of whom a request is for: they change nothing about the answer.
_LABELS = ("prompt_cache_key", "safety_identifier", "user")
# How often a provider's clients may ask for one prompt at a time.
_CHOICES = Range(1, 128)
_TEMPERATURE = 1.0  # OpenAI's default, where the gRPC door is greedy


@dataclass(frozen=True, slots=True)
class Streaming:
    """How an answer is sent. ``usage``: a last event has it; ``continuous``: every one."""

    on: bool = False
    usage: bool = False
    continuous: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of this door. ``echo``: the text of each prompt stands before its answers."""

    requests: tuple[GenerateRequest, ...]
    choices: int
    streaming: Streaming
    model: str
    echo: bool = False


def read_model(fields: Fields) -> str:
    """The model's name; empty means the served one."""
    return fields.read("model", read_text, "")


def read_choices(fields: Fields) -> int:
    choices = fields.read("n", _CHOICES.read, 1)
    best_of = fields.read("best_of", _CHOICES.read, choices)
    if best_of != choices:
        raise InvalidField("best_of", f"n, which is {choices}: all answers are returned")
    return choices


def read_streaming(fields: Fields) -> Streaming:
    on = fields.read("stream", read_flag, False)
    options = fields.read("stream_options", _object, None)
    if options is None:
        return Streaming(on)
    if not on:
        raise InvalidField("stream_options", "absent unless stream is true")
    usage = options.read("include_usage", read_flag, False)
    continuous = options.read("continuous_usage_stats", read_flag, False)
    # Padding of events against eavesdroppers, which openai's own server adds.
    options.refuse({"include_obfuscation": (False,)})
    options.end()
    return Streaming(on, usage, continuous)


def read_options(fields: Fields) -> dict[str, Any]:
    """Keyword arguments as the SDK has them; every other field has been taken before.

    Raises:
        Unsupported, HttpFault: a field is not supported or unknown.
    """
    for label in _LABELS:
        fields.read(label, read_text, "")
    fields.refuse(_UNSUPPORTED)
    options = fields.take_all(OPTION_NAMES)
    fields.end()
    options.setdefault("temperature", _TEMPERATURE)
    bias = options.get("logit_bias")
    if isinstance(bias, dict):
        check_count("logit_bias", bias, MAX_LOGIT_BIASES, "entries")
        options["logit_bias"] = {_token(key): value for key, value in bias.items()}
    return options


def make_request(prompt: Any, messages: Any, options: dict[str, Any]) -> GenerateRequest:
    """Checked as the SDK checks it."""
    return build_request(prompt, messages, "", dict(options))


def _object(name: str, value: Any) -> Fields:
    if not isinstance(value, dict):
        raise InvalidField(name, "an object")
    return Fields(value, f"{name}.")


def _token(key: str) -> int | str:
    """Names in JSON are texts; what is no token id, or 5 written as 05, stays to be refused."""
    token = int(key) if key.isascii() and key.isdigit() and len(key) <= 10 else key
    return token if str(token) == key else key
