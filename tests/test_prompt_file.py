"""Prompts of all public kinds are read; what is none is told by its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from foredraft.params import InvalidField
from foredraft.prompt_file import Chat, read_prompts, read_text

OPTION = "--texts"


def user(text: str) -> Chat:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    "row",
    [
        {"turns": ["one", "two"]},
        {"turns": [{"content": "one"}, {"content": "two"}]},
        {"turns": [{"role": "user", "content": "one"}]},
        {"prompt": "one"},
        {"question": "one"},
        {"question": [[*user("one"), *user("two")]]},
        {"question": "one", "choices": "none"},
        {"instruction": "one"},
        {"instruction": "one", "input": " "},
        {"instruction": "one", "instances": []},
        {"input": "one", "target": "two"},
        {"messages": [*user("one"), {"role": "assistant", "content": "a"}, *user("two")]},
    ],
)
def test_rows_of_every_kind_are_read(tmp_path: Path, row: object) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"\n{json.dumps(row)}\r\n\n")
    assert read_prompts(file, 5, option=OPTION) == [user("one")]
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_prompts(packed, 1, option=OPTION) == [user("one")]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"question": "Which?", "choices": ["red", 4]}, "Which?\nA) red\nB) 4"),
        ({"instruction": "Sort.", "input": "b a"}, "Sort.\n\nb a"),
        ({"instruction": "Sort.", "instances": [{"input": "b a"}, {"input": "c"}]}, "Sort.\n\nb a"),
    ],
)
def test_what_belongs_to_a_question_stands_below_it(tmp_path: Path, row: object, text: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    assert read_prompts(file, 1, option=OPTION) == [user(text)]


def test_without_a_limit_all_rows_are_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": str(number)}) for number in range(7)))
    assert read_prompts(file, None, option=OPTION) == [user(str(number)) for number in range(7)]


def test_system_messages_before_the_user_belong_to_the_prompt(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    system = {"role": "system", "content": "be short"}
    file.write_text(json.dumps({"messages": [system, *user("one"), *user("two")]}))
    assert read_prompts(file, 1, option=OPTION) == [[system, *user("one")]]


def test_rows_are_spread_evenly(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": str(number)}) for number in range(10)))
    assert read_prompts(file, 3, option=OPTION) == [user("0"), user("3"), user("6")]


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
        '{"question": [[]]}',
        '{"question": "", "choices": ["one"]}',
        '{"instruction": "", "input": "one"}',
        '{"input": 3}',
    ],
)
def test_a_row_of_no_known_kind_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"prompt": "one"}}\n{line}\n')
    kinds = "messages, turns, prompt, question, instruction or input"
    text = rf"^--texts .* {kinds}: line 2 of rows\.jsonl is none$"
    with pytest.raises(InvalidField, match=text):
        read_prompts(file, 2, option=OPTION)


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("Once upon a time\n")
    with pytest.raises(InvalidField, match=r"^--texts must be .* JSON lines: line 1 of rows.txt"):
        read_prompts(file, 1, option=OPTION)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    with pytest.raises(InvalidField, match=r"^--texts .* at least one row: rows.jsonl is empty"):
        read_prompts(file, 1, option=OPTION)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("none.txt", None, "No such file"),
        (".", None, "Is a directory"),
        ("latin.txt", b"\xff\xfe", "a text file in UTF-8"),
        ("plain.gz", b"no gzip", "a whole gzip file"),
        ("short.gz", gzip.compress(b"one" * 99, mtime=0)[:-9], "a whole gzip file"),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, content: bytes | None, text: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidField, match=f"^--texts must be .*{text}"):
        read_text(tmp_path / name, option=OPTION)
