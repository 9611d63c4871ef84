"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds back every tail that could be the beginning of a stop string.

    ``found`` turns true with the piece that completes a stop string; the text is then cut before
    the first of them and nothing more is released.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._beginnings = tuple(_Beginning(stop) for stop in self._stops)
        self._held = ""
        self.found = False

    def __bool__(self) -> bool:
        return bool(self._stops)

    def feed(self, piece: str) -> str:
        """The text that may be shown after ``piece``."""
        if self.found:
            return ""
        text = self._held + piece
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        self.found = bool(starts)
        shown = min(starts) if starts else len(text) - self._suspicious(piece)
        self._held = "" if self.found else text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """The tail that was held back; the text ends here."""
        held, self._held = self._held, ""
        return held

    def _suspicious(self, piece: str) -> int:
        """Length of the longest end of the text, ``piece`` being its newest, that begins a stop."""
        for beginning in self._beginnings:
            beginning.feed(piece)
        return max((beginning.length for beginning in self._beginnings), default=0)


class _Beginning:
    """How much of one stop string the text ends with, in amortised constant time per character.

    Knuth, Morris and Pratt's automaton, made only as far as the text has come in the stop string.
    """

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._borders = [0]  # element n - 1: longest proper end of stop[:n] that begins the stop
        self.length = 0

    def feed(self, piece: str) -> None:
        """Take in text that does not complete the stop string."""
        for character in piece:
            self.length = self._step(self.length, character)
            if self.length > len(self._borders):
                border = self._step(self._borders[-1], character)
                self._borders.append(border)

    def _step(self, length: int, character: str) -> int:
        """From the first ``length`` characters of the stop string, after one more of the text."""
        while length and self._stop[length] != character:
            length = self._borders[length - 1]
        return length + (self._stop[length] == character)
