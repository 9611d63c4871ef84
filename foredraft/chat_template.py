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

from foredraft.engine.model_config import Fields, UnsupportedModel, read_json_object
from foredraft.params import InvalidField
from foredraft.request import ChatMessage

_CONFIG = "tokenizer_config.json"
_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """Reads the template of a model directory; without one every chat is refused."""

    def __init__(self, directory: Path) -> None:
        """Raises UnsupportedModel if a file cannot be read or holds no template or tokens."""
        config = _fields(directory / _CONFIG)
        self._template = _template(directory, config)
        tokens = {name: _content(config, name) for name in _TOKEN_NAMES}
        self._tokens = {name: token for name, token in tokens.items() if token}

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


def _template(directory: Path, config: Fields) -> jinja2.Template | None:
    """The template file if there is one, else the entry of a JSON file."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return _compiled(file.name, _read_text(file))
    own = directory / "chat_template.json"
    for name, fields in ((own.name, _fields(own)), (_CONFIG, config)):
        source = _source(fields)
        if source is not None:
            return _compiled(f"{name}: chat_template", source)
    return None


def _compiled(place: str, source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise UnsupportedModel(f"{place} is no template: line {error.lineno}: {error}") from error


def _source(fields: Fields) -> str | None:
    """The template of a JSON file; of several with names the default."""
    entry = fields.get("chat_template")
    if isinstance(entry, list):
        try:
            entry = {named["name"]: named["template"] for named in entry}.get("default")
        except (TypeError, KeyError):
            raise _refused(fields) from None
    if not isinstance(entry, str | None):
        raise _refused(fields)
    return entry


def _refused(fields: Fields) -> UnsupportedModel:
    return fields.refuse("chat_template", "a text, or a list of objects with name and template")


def _content(fields: Fields, name: str) -> str:
    """A special token is written as its text or as an object that holds it; absent is empty."""
    token = fields.get(name)
    text = token.get("content") if isinstance(token, dict) else token or ""
    if not isinstance(text, str):
        raise fields.refuse(name, "a text, or an object with a text as content")
    return text


def _fields(file: Path) -> Fields:
    """A JSON file that need not be there."""
    return Fields(file.name, read_json_object(file) if file.exists() else {})


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{file.name} cannot be read: {error}") from error


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
