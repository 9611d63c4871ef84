"""Answers that were recorded once, so that any draft can be replayed against them.

A token is a function of logits, seed, choice and position, never of guesses. So one recording
says what the target decides at every step, whatever is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from foredraft.params import FinishReason, InvalidField, SamplingParams

OPTION = "--answers"
Key = tuple[str, str, int, float]


@dataclass(frozen=True, slots=True)
class Place:
    """Which answers are counted together."""

    workload: str
    group: str
    temperature: float


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt in token ids, and how it is to be answered.

    target: id of the model that is to answer. row: which row of its workload's file it is.
    """

    target: str
    workload: str
    group: str
    row: int
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int

    @property
    def key(self) -> Key:
        return (self.workload, self.group, self.row, self.temperature)

    @property
    def place(self) -> Place:
        return Place(self.workload, self.group, self.temperature)

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer. ``tokens`` are those delivered: the EOS that ended it is not among them."""

    question: Question
    tokens: tuple[int, ...]
    finish: FinishReason


class AnswerFile:
    """JSON lines, one an answer; what is there is not asked again."""

    def __init__(self, file: Path) -> None:
        """Raises InvalidField if the file is there and does not hold recorded answers."""
        self._file = file
        self._known = {answer.question.key: answer for answer in _read(file)}

    def missing(self, questions: Iterable[Question]) -> list[Question]:
        """Questions without an answer.

        Raises:
            InvalidField: an answer is there, but to another prompt, or with other settings.
        """
        return [question for question in questions if self._find(question) is None]

    def of(self, questions: Iterable[Question]) -> list[Recorded]:
        """Their answers; all must be there."""
        return [self._known[question.key] for question in questions]

    def append(self, out: TextIO, answer: Recorded) -> None:
        """Write one answer down at once, so that a run that ends early loses none."""
        out.write(json.dumps(_fields(answer)) + "\n")
        out.flush()
        self._known[answer.question.key] = answer

    def open(self) -> TextIO:
        """The file, ready for answers behind those that are whole."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(self._file)
        return self._file.open("a", encoding="utf-8")

    def _find(self, question: Question) -> Recorded | None:
        known = self._known.get(question.key)
        if known is not None and known.question != question:
            where = f"row {question.row + 1} of {question.group}"
            allowed = (
                f"answers of this model to these prompts, with this --max-tokens and --seed: "
                f"{where} in {self._file.name} is another"
            )
            raise InvalidField(OPTION, allowed)
        return known


def _read(file: Path) -> list[Recorded]:
    if not file.exists():
        return []
    try:
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]  # behind it: a torn line
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField(OPTION, f"a file of answers: {file.name}: {error}") from None
    return [_answer(file, number, line) for number, line in enumerate(lines, start=1)]


def _answer(file: Path, number: int, line: str) -> Recorded:
    try:
        fields: dict[str, Any] = json.loads(line)
        tokens, finish = tuple(fields.pop("tokens")), FinishReason[fields.pop("finish").upper()]
        return Recorded(Question(**fields | {"prompt": tuple(fields["prompt"])}), tokens, finish)
    except (ValueError, KeyError, TypeError, AttributeError):
        allowed = f"a file that this command wrote: line {number} of {file.name} is no answer"
        raise InvalidField(OPTION, allowed) from None


def _fields(answer: Recorded) -> dict[str, Any]:
    finish = answer.finish.name.lower()
    return asdict(answer.question) | {"tokens": answer.tokens, "finish": finish}


def _cut_torn_line(file: Path) -> None:
    """A writer that was killed may have left a line without its end."""
    if not file.exists():
        return
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        file.write_bytes(content[:whole])
