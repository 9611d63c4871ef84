"""Prompts of all public kinds are read; what is none is told by its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bench.prompts import read_prompts, read_text
from foredraft.params import InvalidField


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    "row",
    [
        {"turns": ["one", "two"]},
        {"turns": [{"content": "one"}, {"content": "two"}]},
        {"turns": [{"role": "user", "content": "one"}]},
        {"prompt": "one"},
        {"question": "one"},
        {"messages": [*user("one"), {"role": "assistant", "content": "a"}, *user("two")]},
    ],
)
def test_rows_of_every_kind_are_read(tmp_path: Path, row: object) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"\n{json.dumps(row)}\r\n\n")
    assert read_prompts(file, 5) == [user("one")]
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_prompts(packed, 1) == [user("one")]


def test_system_messages_before_the_user_belong_to_the_prompt(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    system = {"role": "system", "content": "be short"}
    file.write_text(json.dumps({"messages": [system, *user("one"), *user("two")]}))
    assert read_prompts(file, 1) == [[system, *user("one")]]


def test_rows_are_spread_evenly(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": str(number)}) for number in range(10)))
    assert read_prompts(file, 3) == [user("0"), user("3"), user("6")]


@pytest.mark.parametrize(
    "line",
    [
        '{"other": "one"}',
        "[1]",
        '"one"',
        '{"turns": []}',
        '{"turns": [{"text": "one"}]}',
        '{"turns": 3}',
        '{"prompt": null}',
        '{"prompt": ""}',
        '{"messages": []}',
        '{"messages": [{"role": "assistant", "content": "one"}]}',
        '{"messages": ["one", {"content": "one"}, {"role": "user"}]}',
        '{"messages": {"role": "user"}}',
    ],
)
def test_a_row_of_no_known_kind_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"prompt": "one"}}\n{line}\n')
    text = r"^--prompts .* messages, turns, prompt or question: line 2 of rows\.jsonl is none$"
    with pytest.raises(InvalidField, match=text):
        read_prompts(file, 2)


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("Once upon a time\n")
    with pytest.raises(InvalidField, match=r"^--prompts must be .* JSON lines: line 1 of rows.txt"):
        read_prompts(file, 1)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    with pytest.raises(InvalidField, match=r"^--prompts .* at least one row: rows.jsonl is empty"):
        read_prompts(file, 1)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("none.txt", None, "No such file"),
        (".", None, "Is a directory"),
        ("latin.txt", b"\xff\xfe", "a text file in UTF-8"),
        ("plain.gz", b"no gzip", "a whole gzip file"),
        ("short.gz", gzip.compress(b"one" * 99)[:-9], "a whole gzip file"),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, content: bytes | None, text: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidField, match=f"^--prompts must be .*{text}"):
        read_text(tmp_path / name)
