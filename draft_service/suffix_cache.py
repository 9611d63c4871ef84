"""Guesses from a sequence's own text: what followed the last tokens when they came up before.

The text is indexed by a few lengths of n-grams, each a chain from its newest occurrence to the
oldest, as in an LZ77 compressor. A lookup visits the newest links of each chain, measures how far
each match really reaches back, and so needs a bounded number of comparisons whatever the text.
Memory is proportional to the text and ends with the sequence.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_MATCH = 32  # longer matches count as this long
_GRAMS = (6, 2, 1)  # long first: long matches are looked for among their own kind
_VISITS = 16  # occurrences looked at per n-gram length
_NO_LINK = -1


@dataclass(frozen=True, slots=True)
class Continuation:
    """A token that came next before.

    match: how many of the last tokens stood before it then.
    position: where it stands, counted over the text and the path behind it.
    """

    token: int
    match: int
    position: int


class _GramIndex:
    """For every n-gram the places right behind it, newest first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._newest: dict[int, int] = {}
        self._older = array("i", [_NO_LINK])  # by place; no n-gram ends before place 0

    def append(self, tail: Sequence[int], place: int) -> None:
        """Note that the text now ends with ``tail`` and that ``place`` is next."""
        if len(tail) < self.size:
            self._older.append(_NO_LINK)
            return
        key = self._key(tail)
        self._older.append(self._newest.get(key, _NO_LINK))
        self._newest[key] = place

    def places(self, tail: Sequence[int]) -> Iterable[int]:
        """At most _VISITS places that followed something with the hash of the tail's n-gram."""
        if len(tail) < self.size:
            return
        place = self._newest.get(self._key(tail), _NO_LINK)
        for _ in range(_VISITS):
            if place == _NO_LINK:
                return
            yield place
            place = self._older[place]

    def _key(self, tail: Sequence[int]) -> int:
        return hash(tuple(tail[-self.size :]))


class SuffixCache:
    """The text of one sequence, prompt and output, ready to be searched for its own end."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._text: list[int] = []
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
            for index in self._indexes:
                index.append(tail, len(text))

    def propose(self, path: Sequence[int], width: int) -> list[Continuation]:
        """Up to ``width`` different tokens that may follow the text and then ``path``.

        The longest match comes first; among equals the newest.
        """
        tail = [*self._text[-MAX_MATCH:], *path][-MAX_MATCH:]
        found: dict[int, Continuation] = {}
        for index in self._indexes:
            for place in index.places(tail):
                self._consider(place, tail, path, found)
            if len(found) >= width:
                break
        ranked = sorted(found.values(), key=lambda c: (-c.match, -c.position))
        return ranked[:width]

    def follow(self, position: int, path: Sequence[int]) -> int:
        """The token at ``position`` of the text and the path: a guess may continue itself."""
        behind = position - len(self._text)
        return self._text[position] if behind < 0 else path[behind]

    def _consider(
        self,
        place: int,
        tail: Sequence[int],
        path: Sequence[int],
        found: dict[int, Continuation],
    ) -> None:
        if place == len(self._text) and not path:
            return  # this is the end itself
        match = self._match_length(place, tail)
        token = self.follow(place, path)
        known = found.get(token)
        if match and (known is None or match > known.match):
            found[token] = Continuation(token, match, place)

    def _match_length(self, place: int, tail: Sequence[int]) -> int:
        """How many tokens before ``place`` equal the last ones of ``tail``."""
        text = self._text
        longest = min(place, len(tail))
        for back in range(1, longest + 1):
            if text[place - back] != tail[-back]:
                return back - 1
        return longest
