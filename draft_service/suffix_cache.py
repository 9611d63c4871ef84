"""Guesses from a sequence's own text: what followed the last tokens when they came up before.

The text is indexed by a few lengths of n-grams, each a chain from its newest occurrence to the
oldest, as in an LZ77 compressor. A lookup visits the newest links of each chain, measures how far
each match really reaches back, and so needs a bounded number of comparisons whatever the text.
Memory is proportional to the text and ends with the sequence.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draft_service.suffix_edits import Detour, Edits, Replacement
from foredraft.policy.bucket import Evidence

MAX_MATCH = 32  # longer matches count as this long
LONG, PAIR = 6, 2
_GRAMS = (LONG, PAIR, 1)  # long first: long matches are looked for among their own kind
_VISITS = (16, 16, 6)  # occurrences looked at per n-gram length
_NO_LINK = -1


@dataclass(frozen=True, slots=True)
class Continuation:
    """A token that came next before.

    match: how many of the last tokens stood before it then.
    position: where it stands, counted over the text and the path behind it.
    evidence: how often it followed where about as many tokens stood before.
    """

    token: int
    match: int
    position: int
    evidence: Evidence


class _Visit(NamedTuple):
    """An occurrence that was looked at; they are ordered by how good they are."""

    match: int
    position: int
    token: int


class _GramIndex:
    """For every n-gram the places right behind it, newest first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._newest: dict[int, int] = {}
        self._older = array("i", [_NO_LINK])  # by place; no n-gram ends before place 0

    def append(self, tail: Sequence[int], place: int) -> int:
        """Note that the text now ends with ``tail`` and that ``place`` is next.

        Returns the place that followed the same n-gram before, or -1.
        """
        if len(tail) < self.size:
            self._older.append(_NO_LINK)
            return _NO_LINK
        key = self._key(tail)
        older = self._newest.get(key, _NO_LINK)
        self._older.append(older)
        self._newest[key] = place
        return older

    def places(self, tail: Sequence[int], most: int) -> Iterable[int]:
        """At most ``most`` places that followed something with the hash of the tail's n-gram."""
        if len(tail) < self.size:
            return
        place = self._newest.get(self._key(tail), _NO_LINK)
        for _ in range(most):
            if place == _NO_LINK:
                return
            yield place
            place = self._older[place]

    def repeats(self, tail: Sequence[int], path: Sequence[int]) -> bool:
        """True if something with the hash of the tail's n-gram stood before the text's end."""
        if not path:
            return self._older[-1] != _NO_LINK
        return len(tail) >= self.size and self._key(tail) in self._newest

    def _key(self, tail: Sequence[int]) -> int:
        return hash(tuple(tail[-self.size :]))


class SuffixCache:
    """The text of one sequence, prompt and output, ready to be searched for its own end."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._text: list[int] = []
        self._edits = Edits()
        self._indexes = [_GramIndex(size) for size in _GRAMS]
        self.append(tokens)

    def __len__(self) -> int:
        return len(self._text)

    def append(self, tokens: Iterable[int]) -> None:
        """Take in newly committed tokens."""
        text = self._text
        for token in tokens:
            text.append(token)
            tail = text[-_GRAMS[0] :]
            earlier = [index.append(tail, len(text)) for index in self._indexes]
            self._edits.append(text, earlier[_GRAMS.index(PAIR)])

    def tail(self, path: Sequence[int]) -> Sequence[int]:
        """The last tokens of the text and the path, as many as a match can have."""
        return [*self._text[-MAX_MATCH:], *path][-MAX_MATCH:]

    def propose(self, path: Sequence[int], width: int) -> list[Continuation]:
        """Up to ``width`` different tokens that may follow the text and then ``path``.

        The longest match comes first; among equals the newest.
        """
        tail = self.tail(path)
        visits: dict[int, _Visit] = {}  # by place
        best: dict[int, _Visit] = {}  # by token
        for index, most in zip(self._indexes, _VISITS, strict=True):
            for place in index.places(tail, most):
                if place not in visits and (path or place < len(self._text)):
                    visit = visits[place] = self._visit(place, tail, path)
                    if visit.match and visit > best.get(visit.token, (0,)):
                        best[visit.token] = visit
            if len(best) >= width:
                break
        ranked = sorted(best.values(), reverse=True)[:width]
        return [
            Continuation(v.token, v.match, v.position, _evidence(v, visits.values()))
            for v in ranked
        ]

    def repeats(self, size: int, path: Sequence[int]) -> bool:
        """False if the last ``size`` tokens, LONG, PAIR or 1, never came up before."""
        if size == 1:
            return True
        return self._indexes[_GRAMS.index(size)].repeats([*self._text[-size:], *path][-size:], path)

    def follow(self, position: int, path: Sequence[int]) -> int:
        """The token at ``position`` of the text and the path: a guess may continue itself."""
        behind = position - len(self._text)
        return self._text[position] if behind < 0 else path[behind]

    def detours(self) -> Iterator[Detour]:
        """Copies that broke off and may go on behind what was replaced, the newest first."""
        return self._edits.detours(self._text)

    def replacement(self, position: int, path: Sequence[int]) -> Replacement | None:
        """What is expected instead of what stands at ``position`` of the text and the path."""
        first = self.follow(position, path)
        if not self._edits.knows(first):
            return None
        behind = position + 1 < len(self._text) + len(path)
        second = (self.follow(position + 1, path),) if behind else ()
        return self._edits.expected((first, *second))

    def find_last(self, start: int, most: int) -> int | None:
        """The first of ``most`` places from ``start`` on that holds the text's last token."""
        text = self._text
        end = min(start + most, len(text) - 1)
        return next((place for place in range(start, end) if text[place] == text[-1]), None)

    def _visit(self, place: int, tail: Sequence[int], path: Sequence[int]) -> _Visit:
        return _Visit(self._match_length(place, tail), place, self.follow(place, path))

    def _match_length(self, place: int, tail: Sequence[int]) -> int:
        """How many tokens before ``place`` equal the last ones of ``tail``."""
        text = self._text
        longest = min(place, len(tail))
        for back in range(1, longest + 1):
            if text[place - back] != tail[-back]:
                return back - 1
        return longest


def _evidence(chosen: _Visit, visits: Collection[_Visit]) -> Evidence:
    """How often a token followed among the places where at least about as many tokens matched."""
    edge = next(size for size in _GRAMS if size <= chosen.match)
    followers = [visit.token for visit in visits if visit.match >= edge]
    return Evidence.of(followers.count(chosen.token), len(followers))
