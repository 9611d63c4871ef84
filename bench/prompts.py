"""Reads prompts from the usual kinds of public files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Chat = list[dict[str, str]]


def read_prompts(file: Path, limit: int) -> list[Chat]:
    """The first user message of ``limit`` rows, spread evenly over the file.

    Rows are JSON objects with ``messages``, ``turns``, ``prompt`` or ``question``.

    Raises:
        ValueError: a row has none of them.
    """
    rows = list(_rows(file))
    count = min(limit, len(rows))
    return [_chat(rows[index * len(rows) // count]) for index in range(count)]


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _chat(row: dict[str, Any]) -> Chat:
    if "messages" in row:
        messages = [
            {"role": message["role"], "content": message["content"]}
            for message in row["messages"]
            if isinstance(message.get("content"), str) and message["role"] in ("system", "user")
        ]
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        return messages[: users[0] + 1]
    for name in ("turns", "prompt", "question"):
        if name in row:
            content = row[name][0] if name == "turns" else row[name]
            return [{"role": "user", "content": content}]
    raise ValueError("a row must have messages, turns, prompt or question")
