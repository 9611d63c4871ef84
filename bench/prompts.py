"""Reads prompts from the usual kinds of public files."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from foredraft.params import InvalidField

OPTION = "--prompts"
Chat = list[dict[str, str]]


def read_prompts(file: Path, limit: int) -> list[Chat]:
    """The first user message of ``limit`` rows (at least 1), spread evenly over the file.

    Rows are JSON objects, one a line, with ``messages``, ``turns``, ``prompt`` or ``question``.
    A turn is a text or an object with a text under ``content``. Only the chosen rows are read
    that far.

    Raises:
        InvalidField: the file cannot be read, is empty, or a row is nothing of that kind.
    """
    numbered = enumerate(read_text(file).split("\n"), start=1)
    rows = [(number, line) for number, line in numbered if line.strip()]
    if not rows:
        raise InvalidField(OPTION, f"a file with at least one row: {file.name} is empty")
    count = min(limit, len(rows))
    return [_chat(file, *rows[index * len(rows) // count]) for index in range(count)]


def read_text(file: Path) -> str:
    """The content of a text file, which may be packed by gzip.

    Raises:
        InvalidField: it is not there, or is no such file.
    """
    try:
        raw = file.read_bytes()
        return (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidField(OPTION, f"a text file in UTF-8: {file.name} is none") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidField(OPTION, f"a whole gzip file: {file.name}: {error}") from None
    except OSError as error:
        raise InvalidField(OPTION, f"a file to read: {file}: {error.strerror}") from None


def _chat(file: Path, number: int, line: str) -> Chat:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise _refused(file, number, "JSON lines") from None
    if isinstance(row, dict):
        if "messages" in row:
            chat = _up_to_user(row["messages"])
        else:
            found = [row[name] for name in ("turns", "prompt", "question") if name in row]
            chat = [{"role": "user", "content": _first_text(found[0])}] if found else []
        if chat and chat[-1]["content"]:
            return chat
    allowed = "rows with a text under messages, turns, prompt or question"
    raise _refused(file, number, allowed)


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


def _refused(file: Path, number: int, allowed: str) -> InvalidField:
    return InvalidField(OPTION, f"a file of {allowed}: line {number} of {file.name} is none")
