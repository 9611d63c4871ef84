"""Reads prompts from the usual kinds of public files."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from foredraft.params import InvalidField

Chat = list[dict[str, str]]
_KINDS = "messages, turns, prompt, question, instruction or input"


def read_prompts(file: Path, limit: int | None, *, option: str) -> list[Chat]:
    """The first user message of ``limit`` rows (at least 1; None: all), spread evenly.

    Rows are JSON objects, one a line, with ``messages``, ``turns``, ``prompt``, ``question``,
    ``instruction`` or ``input``. A turn is a text or an object with a text under ``content``; a
    list of turns in a list is a conversation. ``choices`` of a question are listed below it, an
    ``input`` (or that of the first of ``instances``) below its instruction. Only the chosen rows
    are read that far. ``option`` is what errors name.

    Raises:
        InvalidField: the file cannot be read, is empty, or a row is nothing of that kind.
    """
    numbered = enumerate(read_text(file, option=option).split("\n"), start=1)
    rows = [(number, line) for number, line in numbered if line.strip()]
    if not rows:
        raise InvalidField(option, f"a file with at least one row: {file.name} is empty")
    count = len(rows) if limit is None else min(limit, len(rows))
    chosen = [rows[index * len(rows) // count] for index in range(count)]
    return [_chat(_Place(option, file.name, number), line) for number, line in chosen]


def read_text(file: Path, *, option: str) -> str:
    """The content of a text file, which may be packed by gzip; ``option`` is what errors name.

    Raises:
        InvalidField: it is not there, or is no such file.
    """
    try:
        raw = file.read_bytes()
        return (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidField(option, f"a text file in UTF-8: {file.name} is none") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidField(option, f"a whole gzip file: {file.name}: {error}") from None
    except OSError as error:
        raise InvalidField(option, f"a file to read: {file}: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row stands, for errors."""

    option: str
    name: str
    number: int

    def refuse(self, allowed: str) -> InvalidField:
        where = f"line {self.number} of {self.name} is none"
        return InvalidField(self.option, f"a file of {allowed}: {where}")


def _chat(place: _Place, line: str) -> Chat:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise place.refuse("JSON lines") from None
    chat = _of_row(row) if isinstance(row, dict) else []
    if chat and chat[-1]["content"]:
        return chat
    raise place.refuse(f"rows with a text under {_KINDS}")


def _of_row(row: dict[str, Any]) -> Chat:
    """The conversation of a row of any kind; empty, or without a text, if it is of none."""
    if "messages" in row:
        return _up_to_user(row["messages"])
    for name in ("turns", "prompt", "question"):
        if name in row:
            value = row[name]
            if isinstance(value, list) and value and isinstance(value[0], list):
                return _up_to_user(value[0])
            text = _first_text(value)
            return _user(_with_choices(text, row) if name == "question" else text)
    if "instruction" in row:
        return _user(_with_input(_first_text(row["instruction"]), row))
    return _user(_first_text(row.get("input")))


def _user(text: str) -> Chat:
    return [{"role": "user", "content": text}]


def _with_choices(question: str, row: dict[str, Any]) -> str:
    """The question with its choices below it, one a line: A) …, B) …"""
    choices = row.get("choices")
    if not question or not isinstance(choices, list):
        return question
    listed = [
        f"{letter}) {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False)
    ]
    return "\n".join([question, *listed])


def _with_input(instruction: str, row: dict[str, Any]) -> str:
    """The instruction with what it speaks of below it, if there is something."""
    instances = row.get("instances")
    first = instances[0] if isinstance(instances, list) and instances else row
    given = _field(first, "input")
    if not instruction or not isinstance(given, str) or not given.strip():
        return instruction
    return f"{instruction}\n\n{given}"


def _up_to_user(messages: Any) -> Chat:
    """System messages and the first user message; empty if there is none."""
    chat: Chat = []
    for message in messages if isinstance(messages, list) else ():
        role, content = _field(message, "role"), _field(message, "content")
        if role in ("system", "user") and isinstance(content, str):
            chat.append({"role": role, "content": content})
            if role == "user":
                return chat
    return []


def _first_text(value: Any) -> str:
    """A text, or that of the first turn of a list; empty if there is none."""
    if isinstance(value, list):
        value = value[0] if value else None
        value = value if isinstance(value, str) else _field(value, "content")
    return value if isinstance(value, str) else ""


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
