"""Whether a text repeats itself: known without any drafter, from a look now and then."""

from __future__ import annotations

from array import array

from gateway.journal import Journal

_TOKENS = 12  # in a row that stand in the text before, too, are no chance


class Repeats:
    """Reads one journal as it grows. Between looks it costs nothing."""

    __slots__ = ("_journal", "_read", "_text")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._read = 0
        self._text = bytearray()

    def look(self) -> bool:
        """True if the newest tokens stand somewhere before, in the prompt or in the answer."""
        self._take_in()
        text = self._text
        size = array("I").itemsize
        newest = bytes(text[-_TOKENS * size :])
        if len(newest) < _TOKENS * size:
            return False
        found = text.rfind(newest, 0, len(text) - size)
        while found > 0 and found % size:  # in the middle of a token's bytes
            found = text.rfind(newest, 0, found + len(newest) - 1)
        return found >= 0

    def _take_in(self) -> None:
        journal = self._journal
        if not self._read:
            self._text += array("I", journal.prompt).tobytes()
            self._read = len(journal.prompt)
        self._text += array("I", journal.since(self._read)).tobytes()
        self._read = journal.position
