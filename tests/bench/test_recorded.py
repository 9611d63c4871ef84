"""Recorded answers are kept, found again, and not mixed up with others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.recorded import AnswerFile, Question, Recorded
from foredraft.params import FinishReason, InvalidField

QUESTION = Question("tiny", "gsm8k", "gsm8k", 3, (5, 6), max_tokens=8, temperature=0.0, seed=4)
ANSWER = Recorded(QUESTION, (7, 8), FinishReason.STOP)
HOT = replace(QUESTION, temperature=1.0)


def write(file: Path, *answers: Recorded) -> None:
    known = AnswerFile(file)
    with known.open() as out:
        for answer in answers:
            known.append(out, answer)


def test_answers_come_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "answers.jsonl"
    write(file, ANSWER)
    write(file, Recorded(HOT, (9,), FinishReason.LENGTH))
    known = AnswerFile(file)
    assert known.missing([QUESTION, HOT, replace(QUESTION, row=4)]) == [replace(QUESTION, row=4)]
    assert known.of([HOT, QUESTION]) == [Recorded(HOT, (9,), FinishReason.LENGTH), ANSWER]


def test_a_line_that_was_cut_short_is_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    write(file, ANSWER, Recorded(HOT, (9,), FinishReason.LENGTH))
    file.write_bytes(file.read_bytes()[:-5])
    assert AnswerFile(file).missing([QUESTION, HOT]) == [HOT]
    write(file, Recorded(HOT, (10,), FinishReason.LENGTH))
    assert AnswerFile(file).of([QUESTION, HOT])[1].tokens == (10,)


@pytest.mark.parametrize(
    "change", [{"target": "other"}, {"prompt": (5, 7)}, {"max_tokens": 9}, {"seed": 5}]
)
def test_an_answer_to_another_question_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    file = tmp_path / "answers.jsonl"
    write(file, ANSWER)
    text = (
        r"^--answers must be answers of this model .*: row 4 of gsm8k in answers.jsonl is another"
    )
    with pytest.raises(InvalidField, match=text):
        AnswerFile(file).missing([replace(QUESTION, **change)])


@pytest.mark.parametrize("line", ["text", "[]", '{"tokens": [1], "finish": "stop"}', "{}"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(f"{line}\n")
    text = r"^--answers must be a file that this command wrote: line 1 of answers.jsonl is no"
    with pytest.raises(InvalidField, match=text):
        AnswerFile(file)
