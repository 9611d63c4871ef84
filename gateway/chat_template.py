"""A model's chat template: from messages to the text that the model was trained to continue.

The sandbox and its helpers are those that templates published with models rely on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from foredraft.params import InvalidField
from foredraft.request import ChatMessage

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """Reads the template of a model directory; without one every chat is refused."""

    def __init__(self, directory: Path) -> None:
        config = _read_json(directory / "tokenizer_config.json")
        source = _source(directory, config)
        self._template = None if source is None else _environment().from_string(source)
        self._tokens = {name: _content(config[name]) for name in _TOKEN_NAMES if config.get(name)}

    def render(self, messages: Iterable[ChatMessage]) -> str:
        """The prompt text, up to where the assistant's turn begins.

        Raises:
            InvalidField: there are no messages, or the template does not take them.
        """
        turns = [{"role": message.role, "content": message.content} for message in messages]
        if not turns:
            raise InvalidField("messages", "at least one message")
        if self._template is None:
            raise InvalidField("messages", "absent: this model has no chat template")
        try:
            return self._template.render(
                messages=turns,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            )
        except jinja2.TemplateError as error:
            raise InvalidField("messages", f"what the chat template takes: {error}") from None


def _source(directory: Path, config: dict[str, Any]) -> str | None:
    """The template file if there is one, else the entry of the tokenizer's configuration."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    entry = _read_json(directory / "chat_template.json").get("chat_template")
    if entry is None:
        entry = config.get("chat_template")
    if isinstance(entry, list):
        named = {template["name"]: template["template"] for template in entry}
        entry = named.get("default")
    return entry


def _read_json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return content


def _content(token: str | dict[str, Any]) -> str:
    """A special token is written as its text or as an object that holds it."""
    return token if isinstance(token, str) else str(token["content"])


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Jinja's own filter escapes characters of HTML, which a prompt must keep."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
