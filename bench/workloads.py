"""The workloads that drafts are measured on: how rows of public files are read and grouped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.params import InvalidField
from foredraft.prompt_file import Chat, read_text

OPTION = "--workload"
_USER_TURNS = 3  # of a recorded conversation: later ones outgrow small contexts

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt. ``number`` is its line among the rows of its file, from 0.

    reference: the answer as the file has it; None if it has none.
    """

    workload: str
    group: str
    number: int
    chat: Chat
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """How the rows of a workload are read.

    files: where they lie below a folder that holds all workloads.
    chat: the messages of a row; raises KeyError, TypeError or IndexError where it has none.
    group: what a row is counted with.
    """

    files: tuple[str, ...]
    chat: Callable[[Fields], Chat]
    group: Callable[[Fields], str]


def _single(field: str) -> Callable[[Fields], Chat]:
    return lambda row: [{"role": "user", "content": row[field]}]


def _first_turn(row: Fields) -> Chat:
    return [{"role": "user", "content": row["turns"][0]}]


def _conversation(row: Fields) -> Chat:
    """All messages up to the third of the user; calls of tools stand as their JSON."""
    chat: Chat = []
    turns = 0
    for message in row["messages"]:
        calls = message.get("tool_calls")
        content = json.dumps(calls) if calls else message["content"]
        chat.append({"role": message["role"], "content": content})
        turns += message["role"] == "user"
        if turns == _USER_TURNS:
            return chat
    while chat and chat[-1]["role"] != "user":  # an answer is due after the user's word
        chat.pop()
    return chat


def _same(name: str) -> Callable[[Fields], str]:
    return lambda row: name


KINDS = {
    "spec_bench": Kind(
        ("spec_bench/question.jsonl.gz",), _first_turn, lambda row: str(row["group"])
    ),
    "humaneval": Kind(("humaneval/HumanEval.jsonl.gz",), _single("prompt"), _same("humaneval")),
    "gsm8k": Kind(("gsm8k/test.jsonl.gz",), _single("question"), _same("gsm8k")),
    "code_edit": Kind(
        ("code_edit/rename_python_stdlib.jsonl.gz", "code_edit/humanevalfix_python.jsonl.gz"),
        _single("prompt"),
        lambda row: "rename" if "old" in row else "fix",
    ),
    "json_extract": Kind(
        ("json_extract/retail_orders.jsonl.gz",), _single("prompt"), _same("json_extract")
    ),
    "agentic": Kind(
        ("agentic/tau_airline_trajectories.jsonl.gz",), _conversation, _same("agentic")
    ),
}


def find_files(data: Path, names: Iterable[str]) -> list[tuple[str, Path]]:
    """The files of the named workloads below a folder with the usual layout."""
    return [(name, data / file) for name in names for file in KINDS[name].files]


def read_rows(files: Sequence[tuple[str, Path]], limit: int | None) -> list[Row]:
    """The rows of all files; of each group at most ``limit``, spread evenly.

    Raises:
        InvalidField: a file cannot be read, or a row is not of its workload's kind.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for name, file in files:
        for row in _rows(name, file):
            groups.setdefault((row.workload, row.group), []).append(row)
    return [row for rows in groups.values() for row in _spread(rows, limit)]


def _rows(name: str, file: Path) -> list[Row]:
    lines = [line for line in read_text(file, option=OPTION).split("\n") if line.strip()]
    if not lines:
        raise InvalidField(OPTION, f"a file with at least one row: {file.name} is empty")
    return [_row(name, file, number, line) for number, line in enumerate(lines)]


def _row(name: str, file: Path, number: int, line: str) -> Row:
    kind = KINDS[name]
    try:
        fields = json.loads(line)
        chat, group = kind.chat(fields), kind.group(fields)
        reference = fields.get("reference")
    except (ValueError, RecursionError, KeyError, TypeError, IndexError, AttributeError):
        chat = []
    if not chat or not all(isinstance(message["content"], str) for message in chat):
        allowed = f"a file of rows as {name} has them: row {number + 1} of {file.name} is none"
        raise InvalidField(OPTION, allowed)
    return Row(name, group, number, chat, reference if isinstance(reference, str) else None)


def _spread(rows: list[Row], limit: int | None) -> list[Row]:
    count = len(rows) if limit is None else min(limit, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]
