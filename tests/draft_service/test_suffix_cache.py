"""The suffix cache against a search that looks everywhere, and what a lookup costs."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from draft_service.suffix_cache import MAX_MATCH, SuffixCache
from foredraft.policy.bucket import Evidence

short_texts = st.lists(st.integers(0, 3), max_size=14)


def search(text: list[int], path: list[int]) -> dict[int, tuple[int, int]]:
    """For every token that followed a match: (length, place) of the longest, newest first."""
    whole = text + path
    best: dict[int, tuple[int, int]] = {}
    for place in range(1, len(text) + 1):
        if place == len(whole):
            continue
        length = 0
        while length < min(place, MAX_MATCH) and whole[place - 1 - length] == whole[-1 - length]:
            length += 1
        if length:
            best[whole[place]] = max(best.get(whole[place], (0, 0)), (length, place))
    return best


@given(short_texts, st.lists(st.integers(0, 3), max_size=4))
def test_finds_what_a_full_search_finds(text: list[int], path: list[int]) -> None:
    expected = search(text, path)
    found = {c.token: (c.match, c.position) for c in SuffixCache(text).propose(path, 4)}
    assert all(expected[token] == where for token, where in found.items())
    if expected:
        best = max(expected.values())
        assert next(iter(found.values())) == best
    else:
        assert not found


@given(short_texts, st.integers(0, 14))
def test_appending_piece_by_piece_is_the_same(text: list[int], cut: int) -> None:
    grown = SuffixCache(text[:cut])
    grown.append(text[cut:])
    assert grown.propose([], 3) == SuffixCache(text).propose([], 3)
    assert len(grown) == len(text)


def test_longest_match_first_then_the_newest() -> None:
    text = [1, 2, 3, 50, 9, 3, 60, 8, 3, 70, 4, 1, 2, 3]
    found = SuffixCache(text).propose([], 3)
    assert [(c.token, c.match) for c in found] == [(50, 3), (70, 1), (60, 1)]


def evidence_of(text: list[int], token: int) -> Evidence:
    return next(c.evidence for c in SuffixCache(text).propose([], 3) if c.token == token)


def test_evidence_is_counted_over_places_with_about_as_long_a_match() -> None:
    assert evidence_of([1, 2, 50, 1, 2], 50) is Evidence.ONCE
    assert evidence_of([1, 2, 50, 1, 2, 50, 1, 2], 50) is Evidence.ALWAYS
    mixed = [1, 2, 50, 1, 2, 60, 1, 2, 50, 1, 2]
    assert evidence_of(mixed, 50) is Evidence.MOSTLY
    assert evidence_of(mixed, 60) is Evidence.SOMETIMES
    other = [9, 2, 70, 8, 2, 70, *mixed]  # one equal token there, two here
    assert evidence_of(other, 50) is Evidence.MOSTLY


def follow(cache: SuffixCache, steps: int) -> list[int]:
    """A chain that keeps to the occurrence it started from."""
    position = cache.propose([], 1)[0].position
    path: list[int] = []
    for _ in range(steps):
        path.append(cache.follow(position, path))
        position += 1
    return path


def test_a_repetition_runs_past_the_end_of_the_text() -> None:
    assert follow(SuffixCache([1, 2, 3] * 3), 10) == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
    assert follow(SuffixCache([5, 5]), 6) == [5] * 6


def test_nothing_to_go_by() -> None:
    for text in ([], [4], [4, 5, 6]):
        assert SuffixCache(text).propose([], 3) == []


class CountingCache(SuffixCache):
    """Counts the tokens that matches are compared over."""

    compared = 0

    def _match_length(self, place, tail):
        length = super()._match_length(place, tail)
        self.compared += length + 1
        return length


def test_a_lookup_costs_the_same_in_a_long_text() -> None:
    """Bounded comparisons even where every place matches: 38 places of 32 tokens."""
    for text in ([7] * 20_000, [random.Random(1).randrange(5) for _ in range(20_000)]):
        cache = CountingCache(text)
        cache.propose([], 3)
        assert 0 < cache.compared <= 38 * (MAX_MATCH + 1)
