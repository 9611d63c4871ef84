"""What a text replaces while it copies itself, and that it is guessed the next time."""

from __future__ import annotations

import random

import pytest
from support.scripted_target import ScriptedTarget, commit_all, exchange

from draft_service.drafter import Drafter
from draft_service.suffix_edits import LONGEST_NEW, MOST_DOUBTS, Edits
from foredraft.params import SamplingParams
from foredraft.wire.messages import Limits, ModelInfo, OpenSequence, OpenSequences

BEFORE, BEHIND = [11, 12, 13, 14], [15, 16, 17, 18]


def read(text: list[int]) -> Edits:
    """Edits that have read a text token by token."""
    edits = Edits()
    places: dict[tuple[int, ...], int] = {}
    for end in range(1, len(text) + 1):
        pair = tuple(text[max(0, end - 2) : end])
        edits.append(text[:end], places.get(pair, -1) if end > 1 else -1)
        places[pair] = end
    return edits


@pytest.mark.parametrize("old", [[], [21], [21, 22, 23]])
@pytest.mark.parametrize("new", [[], [31], [31, 32, 33, 34]])
def test_spans_of_any_lengths_are_learned(old: list[int], new: list[int]) -> None:
    if old == new:
        return
    text = [*BEFORE, *old, *BEHIND, 50, 51, *BEFORE, *new, *BEHIND]
    edits = read(text)
    known = edits.expected([*old, *BEHIND][:2])
    assert known is not None
    assert (known.removed, known.added, known.doubts) == (len(old), len(new), 0)
    assert text[known.start : known.start + known.added] == new
    assert edits.expected([99, 98]) is None


def test_what_was_kept_since_is_doubted() -> None:
    once = [1, 2, 3, *BEFORE, 21, *BEHIND]
    text = [*once, 50, 51, *BEFORE, 31, *BEHIND, 52]
    for doubts in range(MOST_DOUBTS + 2):
        known = read(text).expected([21, 15])
        assert known is not None and known.doubts == min(doubts, MOST_DOUBTS)
        text += [*once, 60 + doubts]


def test_a_copy_that_breaks_off_waits_for_a_limited_time() -> None:
    text = [*BEFORE, 21, *BEHIND, 50, 51, *BEFORE]
    for taken in range(1, LONGEST_NEW + 9):
        text.append(100 + taken)
        waiting = [(d.at, d.taken, d.known) for d in read(text).detours(text)]
        assert waiting == [(4, taken, None)] * (taken <= LONGEST_NEW + 1)


def test_a_known_replacement_is_recognised_from_its_first_tokens() -> None:
    once = [1, 2, 3, *BEFORE, 21, *BEHIND]
    text = [*once, 50, 51, *BEFORE, 31, 32, *BEHIND, 52, 1, 2, 3, *BEFORE]
    for token, known in ((31, True), (33, False)):
        newest = next(read([*text, token]).detours([*text, token]))
        assert newest.taken == 1 and (newest.known is not None) == known


def steps_of_renaming(new_name: list[int]) -> int:
    """Steps for a copy of 300 tokens in which a name that stands there 20 times is replaced."""
    rng = random.Random(5)
    name = 7
    prompt, text = [], []
    for _ in range(20):
        part = [rng.randrange(10, 900) for _ in range(14)]
        prompt += [name, *part]
        text += [*new_name, *part]
    params = SamplingParams(max_tokens=1000)
    opened = OpenSequence(1, 0, (*prompt, 8), params)
    drafter = Drafter(ModelInfo("t", "h", 1000, 4096, ()), Limits(1, 64, 32))
    target = ScriptedTarget(opened, [*prompt, 8, *text])
    drafter.handle(1, OpenSequences((opened,)))
    steps = 0
    while not target.done:
        exchange(drafter, [target])
        commit_all(drafter, [target])
        steps += 1
    return steps


@pytest.mark.parametrize(("new_name", "most"), [([901], 20), ([901, 902, 903], 24), ([], 18)])
def test_a_new_name_is_guessed_once_it_is_known(new_name: list[int], most: int) -> None:
    """By matches alone it takes 42, 58 and 34 steps."""
    assert steps_of_renaming(new_name) <= most
