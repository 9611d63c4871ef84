"""A text that repeats itself is known as such from its tokens alone."""

from __future__ import annotations

import random

from gateway.journal import Journal
from gateway.repeats import Repeats

ONCE = random.Random(1).sample(range(100_000), 300)


def journal_of(prompt: list[int], committed: list[int]) -> Journal:
    journal = Journal(tuple(prompt))
    journal.append(len(prompt), committed)
    return journal


def test_a_copy_of_the_prompt_repeats_from_its_twelfth_token_on() -> None:
    journal = Journal(tuple(ONCE))
    repeats = Repeats(journal)
    looks = []
    for token in ONCE[50:80]:
        journal.append(journal.position, [token])
        looks.append(repeats.look())
    assert looks == [False] * 11 + [True] * 19


def test_a_text_that_goes_round_in_circles_repeats_itself() -> None:
    assert Repeats(journal_of(ONCE[:9], [5, 6, 7] * 6)).look()


def test_what_is_new_does_not() -> None:
    journal = journal_of(ONCE[:100], ONCE[100:200])
    repeats = Repeats(journal)
    assert not repeats.look()
    journal.append(journal.position, ONCE[200:250])
    assert not repeats.look()
    assert not Repeats(journal_of([1, 2], [1, 2, 1, 2])).look()  # too short to tell


def test_the_same_bytes_in_other_places_are_not_the_same_tokens() -> None:
    """Tokens of 1 << 8 are tokens of 1, a byte later."""
    assert not Repeats(journal_of([1] * 14, [1 << 8] * 12)).look()
