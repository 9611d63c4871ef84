"""From rows of text to what the services are asked, and to answers that the files give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.recorded import Question, Recorded
from bench.workloads import Row
from foredraft.chat_template import ChatTemplate
from foredraft.params import FinishReason, InvalidField
from foredraft.request import ChatMessage
from foredraft.tokenizer_hash import read_tokenizer
from foredraft.wire.messages import ModelInfo


@dataclass(frozen=True, slots=True)
class Settings:
    """How all questions are asked, and of which model."""

    target: ModelInfo
    max_tokens: int
    seed: int


class Asker:
    """Makes prompts as a chat with the served model would."""

    def __init__(self, model: Path, settings: Settings) -> None:
        """Raises UnsupportedModel if the directory has no tokenizer or template to read."""
        self._tokenizer = read_tokenizer(model)
        self._template = ChatTemplate(model)
        self._settings = settings
        self._target = settings.target

    def questions(self, rows: Iterable[Row], temperatures: Sequence[float]) -> list[Question]:
        """One per row and temperature, row by row; rows that outgrow the context are left out.

        A row's seed is the settings' and its number, so that it does not depend on other rows.
        """
        greedy = [question for row in rows if (question := self._question(row)) is not None]
        return [replace(one, temperature=t) for one in greedy for t in temperatures]

    def references(self, rows: Iterable[Row]) -> list[Recorded]:
        """The files' own answers, as if the target had said them greedily and ended there.

        Raises:
            InvalidField: a row has none.
        """
        answers = []
        for row in rows:
            if row.reference is None:
                allowed = f"left out with workloads without reference answers: {row.workload}"
                raise InvalidField("--reference", allowed)
            prompt, tokens = self._prompt(row), self._encode(row.reference)
            room = self._target.context_length - len(prompt)
            if len(tokens) < room:
                question = Question(
                    self._target.model_id, row.workload, row.group, row.number, prompt, room, 0.0, 0
                )
                answers.append(Recorded(question, tokens, FinishReason.STOP))
        return answers

    def _question(self, row: Row) -> Question | None:
        prompt, settings = self._prompt(row), self._settings
        if len(prompt) + settings.max_tokens > self._target.context_length:
            return None
        return Question(
            target=self._target.model_id,
            workload=row.workload,
            group=row.group,
            row=row.number,
            prompt=prompt,
            max_tokens=settings.max_tokens,
            temperature=0.0,
            seed=settings.seed + row.number,
        )

    def _prompt(self, row: Row) -> tuple[int, ...]:
        return self._encode(self._template.render(ChatMessage(**message) for message in row.chat))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
