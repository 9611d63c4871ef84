"""The body of a completion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foredraft.call import read_prompt
from foredraft.params import InvalidField
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

MAX_TOKENS = 16  # OpenAI's default
_PROMPTS = "a text, a list of token ids, or a list of one or more of these"


def read_completion(fields: Fields, bounds: Bounds) -> Asked:
    """Check a body.

    Raises:
        InvalidField, Unsupported, HttpFault: something in it cannot be done.
    """
    model = read_model(fields)
    prompts = fields.required("prompt", _prompts)
    bounds.check_prompts("prompt", prompts)
    echo = fields.read("echo", read_flag, False)
    choices, streaming = read_choices(fields), read_streaming(fields)
    bounds.check_choices(len(prompts), choices)
    options = read_options(fields)
    options.setdefault("max_tokens", MAX_TOKENS)
    first = make_request(prompts[0], None, options)
    first = replace(first, score_prompt=echo and first.options.logprobs is not None)
    others = (replace(first, prompt=read_prompt(prompt)) for prompt in prompts[1:])
    return Asked((first, *others), choices, streaming, model, echo)


def _prompts(name: str, value: Any) -> list[Any]:
    """One prompt or several; what each of them holds is checked with its request."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise InvalidField(name, _PROMPTS)
    if not isinstance(value[0], str | list):
        return [value]
    if not all(isinstance(prompt, str | list) for prompt in value):
        raise InvalidField(name, _PROMPTS)
    return value
