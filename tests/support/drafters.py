"""Drafters for tests: functions from tokens to guessed continuations."""

from __future__ import annotations

import random
from collections.abc import Sequence

from support.verify_driver import Guesser


def prophet(text: Sequence[int], depth: int) -> Guesser:
    """Knows ``text`` (prompt and answer) and guesses its next ``depth`` tokens."""

    def guesses(tokens: Sequence[int]) -> Sequence[Sequence[int]]:
        return [text[len(tokens) : len(tokens) + depth]]

    return guesses


def always_wrong(text: Sequence[int], depth: int, vocab: int) -> Guesser:
    """Knows ``text`` and guesses anything but its next token."""

    def guesses(tokens: Sequence[int]) -> Sequence[Sequence[int]]:
        here = text[len(tokens) : len(tokens) + depth]
        return [[(token + 1) % vocab for token in here]]

    return guesses


def wild(depth: int, vocab: int, seed: int = 0) -> Guesser:
    """A random bushy tree."""
    source = random.Random(seed)

    def guesses(tokens: Sequence[int]) -> Sequence[Sequence[int]]:
        return [source.choices(range(vocab), k=depth) for _ in range(3)]

    return guesses


def half_right(text: Sequence[int], depth: int, vocab: int, seed: int = 0) -> Guesser:
    """The next tokens of ``text`` with a mistake at a random depth, beside a wrong sibling."""
    source = random.Random(seed)

    def guesses(tokens: Sequence[int]) -> Sequence[Sequence[int]]:
        right = list(text[len(tokens) : len(tokens) + depth])
        if not right:
            return []
        wrong = list(right)
        place = source.randrange(len(right))
        wrong[place] = (wrong[place] + 1) % vocab
        return [wrong, right[: source.randrange(depth + 1)]]

    return guesses
