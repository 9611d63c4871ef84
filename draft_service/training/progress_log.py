"""The log of a training run: JSON lines that a plot, a card and a person can read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from draft_service.training.evaluation import Agreement
from draft_service.training.settings import write_whole


@dataclass(frozen=True, slots=True)
class Line:
    """After ``step`` steps; ``loss`` is the mean since the line before, None if there was none."""

    step: int
    seconds: float
    tokens: int
    loss: float | None
    agreement: Agreement

    def text(self) -> str:
        numbers = {name: round(value, 4) for name, value in asdict(self.agreement).items()}
        loss = None if self.loss is None else round(self.loss, 4)
        fields = {"step": self.step, "seconds": round(self.seconds, 1), "tokens": self.tokens}
        return json.dumps({**fields, "loss": loss, **numbers})


class ProgressLog:
    def __init__(self, file: Path) -> None:
        self._file = file

    def lines(self) -> list[Line]:
        """All that was logged; nothing if there is no file."""
        if not self._file.exists():
            return []
        return [_read(text) for text in self._file.read_text("utf-8").splitlines()]

    def add(self, line: Line) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line.text() + "\n")

    def cut_after(self, step: int) -> None:
        """Forget what a run that was killed has logged after its last checkpoint."""
        kept = [line.text() + "\n" for line in self.lines() if line.step <= step]
        write_whole(self._file, "".join(kept).encode())


def _read(text: str) -> Line:
    fields = json.loads(text)
    own = {name: fields.pop(name) for name in ("step", "seconds", "tokens", "loss")}
    return Line(**own, agreement=Agreement(**fields))
