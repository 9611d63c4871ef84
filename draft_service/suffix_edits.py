"""Replacements that a text makes while it copies: "old name here, new name there".

A few cursors follow the text through earlier places of its own. Where a cursor's copy breaks off
and goes on a little later behind the break, what was left out and what came instead are a
replacement. It is known by the first tokens of what was left out, and expected again where these
come up next. That is how a name is changed in code, and how prose becomes the fields of a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

_CURSORS = 4  # copies that are followed, or may still go on
_TRUSTED = 3  # tokens copied before a break says anything
LONGEST_OLD, LONGEST_NEW = 12, 32  # tokens of a replacement
_ANCHOR = 2  # equal tokens that show where a copy goes on, or begins
MOST_DOUBTS = 2
_COPYING = -1


@dataclass(frozen=True, slots=True)
class Replacement:
    """``removed`` tokens give way to ``added`` ones, which stand from ``start`` on in the text.

    doubts: how often since then nothing was replaced after all, up to MOST_DOUBTS.
    """

    start: int
    added: int
    removed: int
    doubts: int = 0


@dataclass(frozen=True, slots=True)
class Detour:
    """A copy that has broken off at the end of the text.

    at: place of the first token that was left out. taken: tokens that came instead up to now.
    known: what came instead the last time, if these are its first tokens.
    """

    at: int
    taken: int
    known: Replacement | None


@dataclass(slots=True)
class _Cursor:
    """A copy: ``at`` is the place of the token that comes next if it goes on.

    copied: tokens in a row. broken: where in the text other tokens came, or _COPYING; then
    ``anchors`` says by the first two tokens behind a replacement how many it removes.
    """

    at: int
    copied: int = _ANCHOR
    broken: int = _COPYING
    anchors: dict[tuple[int, int], int] = field(default_factory=dict)


class Edits:
    """Reads a text token by token and remembers what it replaces."""

    def __init__(self) -> None:
        self._cursors: list[_Cursor] = []
        self._known: dict[tuple[int, ...], Replacement] = {}

    def append(self, text: Sequence[int], earlier: int) -> None:
        """Take in the newest token; the last two stood before ``earlier`` once, if it is not -1."""
        newest = len(text) - 1
        copying = False
        for cursor in self._cursors[:]:
            if cursor.broken == _COPYING:
                copying |= self._goes_on(cursor, text, newest)
            elif newest - cursor.broken > LONGEST_NEW:
                self._cursors.remove(cursor)
            else:
                copying |= self._comes_back(cursor, text, newest)
        if not copying and earlier >= 0:
            if len(self._cursors) == _CURSORS:
                del self._cursors[0]
            self._cursors.append(_Cursor(earlier))

    def knows(self, first: int) -> bool:
        """True if other tokens came once instead of a text that begins with ``first``."""
        return (first,) in self._known

    def expected(self, removed: Sequence[int]) -> Replacement | None:
        """What came the last time instead of a text that begins like ``removed``."""
        key = self._key(removed)
        return None if key is None else self._known[key]

    def detours(self, text: Sequence[int]) -> Iterator[Detour]:
        """Copies that may go on behind what was replaced, the newest first."""
        for cursor in reversed(self._cursors):
            if cursor.broken == _COPYING:
                continue
            taken = len(text) - cursor.broken
            known = self.expected(text[cursor.at : cursor.at + 2])
            if known is not None:
                first = text[known.start : known.start + min(taken, known.added)]
                known = known if first == text[cursor.broken :] else None
            yield Detour(cursor.at, taken, known)

    def _goes_on(self, cursor: _Cursor, text: Sequence[int], newest: int) -> bool:
        """True if the newest token is the next one of a copy; else the copy breaks, or is none."""
        at = cursor.at
        if text[at] == text[newest]:
            if cursor.copied >= _TRUSTED:
                self._doubt(text[at : at + 2])
            cursor.at += 1
            cursor.copied += 1
            return True
        if cursor.copied < _TRUSTED:
            self._cursors.remove(cursor)
            return False
        cursor.broken = newest
        last = min(at + LONGEST_OLD, newest - _ANCHOR)
        cursor.anchors = {(text[p], text[p + 1]): p - at for p in range(last, at - 1, -1)}
        return False

    def _comes_back(self, cursor: _Cursor, text: Sequence[int], newest: int) -> bool:
        """True if the text goes on behind what a copy left out; that is learned."""
        removed = cursor.anchors.get((text[newest - 1], text[newest]))
        added = newest - 1 - cursor.broken
        if removed is None or added < 0:
            return False
        found = Replacement(cursor.broken, added, removed)
        for size in (1, 2):
            self._known[tuple(text[cursor.at : cursor.at + size])] = found
        cursor.at += removed + _ANCHOR
        cursor.copied, cursor.broken = _ANCHOR, _COPYING
        return True

    def _doubt(self, kept: Sequence[int]) -> None:
        """The text goes on with tokens instead of which others came once."""
        key = self._key(kept)
        if key is not None and self._known[key].doubts < MOST_DOUBTS:
            known = self._known[key]
            self._known[key] = replace(known, doubts=known.doubts + 1)

    def _key(self, removed: Sequence[int]) -> tuple[int, ...] | None:
        for key in (tuple(removed[:2]), tuple(removed[:1])):
            if key in self._known:
                return key
        return None
