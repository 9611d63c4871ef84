"""Rows of every workload are read and grouped; what is none is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.workloads import KINDS, Row, find_files, read_rows
from foredraft.params import InvalidField

ASSISTANT = {"role": "assistant", "content": "a"}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def write(file: Path, *rows: Any) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize(
    ("name", "fields", "group"),
    [
        ("spec_bench", {"turns": ["one", "two"], "group": "qa"}, "qa"),
        ("humaneval", {"prompt": "one"}, "humaneval"),
        ("gsm8k", {"question": "one", "answer": "2"}, "gsm8k"),
        ("code_edit", {"prompt": "one", "old": "a", "new": "b"}, "rename"),
        ("code_edit", {"prompt": "one", "buggy": "a"}, "fix"),
        ("json_extract", {"prompt": "one"}, "json_extract"),
        ("agentic", {"messages": [user("one"), ASSISTANT]}, "agentic"),
    ],
)
def test_rows_of_every_workload(
    tmp_path: Path, name: str, fields: dict[str, Any], group: str
) -> None:
    file = write(tmp_path / "rows.jsonl", fields | {"reference": "text"})
    assert read_rows([(name, file)], None) == [Row(name, group, 0, [user("one")], "text")]


def test_a_conversation_is_taken_up_to_the_third_word_of_the_user(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    messages = [user("1"), call, user("2"), ASSISTANT, user("3"), ASSISTANT, user("4")]
    [row] = read_rows([("agentic", write(tmp_path / "rows.jsonl", {"messages": messages}))], None)
    called = {"role": "assistant", "content": '[{"name": "f"}]'}
    assert row.chat == [user("1"), called, user("2"), ASSISTANT, user("3")]


def test_each_group_gives_as_many_rows_and_keeps_their_numbers(tmp_path: Path) -> None:
    rows = [{"turns": [str(n)], "group": "a" if n < 6 else "b"} for n in range(8)]
    found = read_rows([("spec_bench", write(tmp_path / "rows.jsonl", *rows))], 2)
    assert [(row.group, row.number) for row in found] == [("a", 0), ("a", 3), ("b", 6), ("b", 7)]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("spec_bench", {"turns": ["one"]}),
        ("spec_bench", {"turns": [], "group": "a"}),
        ("humaneval", {"question": "one"}),
        ("gsm8k", {"question": 3}),
        ("agentic", {"messages": [ASSISTANT]}),
        ("agentic", {"messages": ["one"]}),
        ("json_extract", ["one"]),
    ],
)
def test_a_row_of_another_kind_is_named(tmp_path: Path, name: str, line: Any) -> None:
    file = write(tmp_path / "rows.jsonl", line)
    text = rf"^--workload must be a file of rows as {name} has them: row 1 of rows.jsonl is none$"
    with pytest.raises(InvalidField, match=text):
        read_rows([(name, file)], None)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match=r"^--workload must be a file to read: .*No such file"):
        read_rows(find_files(tmp_path, ["gsm8k"]), None)


def test_every_workload_has_files() -> None:
    assert [name for name, _ in find_files(Path(), KINDS)].count("code_edit") == 2
