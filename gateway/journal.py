"""What is final of one sequence, and all that a worker needs to take it up anywhere."""

from __future__ import annotations

from collections.abc import Sequence


class Journal:
    """Prompt and committed tokens. Idempotent by position: a commit counts once."""

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self.prompt = prompt
        self.committed: list[int] = []

    @property
    def position(self) -> int:
        """Index of the next token in the whole sequence, the prompt included."""
        return len(self.prompt) + len(self.committed)

    def since(self, position: int) -> list[int]:
        """The tokens from ``position`` on, which is not within the prompt."""
        return self.committed[position - len(self.prompt) :]

    def append(self, position: int, tokens: Sequence[int]) -> bool:
        """Take in a commit that continues the journal; False if it does not."""
        if position != self.position:
            return False
        self.committed.extend(tokens)
        return True
