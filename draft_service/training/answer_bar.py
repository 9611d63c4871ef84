"""A progress bar of answers, which moves and tells the speed while a batch of them is made."""

from __future__ import annotations

import time
from types import TracebackType
from typing import NoReturn

from tqdm import tqdm


class AnswerBar:
    """Shown on a terminal only, as long as it is entered.

    Args:
        total: answers that are to be made.
    """

    def __init__(self, total: int) -> None:
        self.tokens = 0  # of batches that are done
        self._answers = 0  # the same
        self._started = time.monotonic()
        self._bar: tqdm[NoReturn] = tqdm(total=total, desc="answers", unit="answer", disable=None)

    def __enter__(self) -> AnswerBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._started

    def move(self, answers: int, share: float, tokens: int) -> None:
        """A batch of so many answers has ``tokens`` and is at ``share`` of its steps, at most 1.

        The share counts as whole answers: which of them have ended says less about the time left,
        since nearly all end late where none has an EOS.
        """
        self._bar.set_postfix_str(f"{(self.tokens + tokens) / self.seconds:,.0f} tokens/s", False)
        self._bar.update(self._answers + int(answers * share) - self._bar.n)

    def batch_done(self, answers: int, tokens: int) -> None:
        self.move(answers, 1.0, tokens)
        self._answers += answers
        self.tokens += tokens
