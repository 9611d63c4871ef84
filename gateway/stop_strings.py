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
        shown = min(starts) if starts else len(text) - self._suspicious(text)
        self._held = "" if self.found else text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """The tail that was held back; the text ends here."""
        held, self._held = self._held, ""
        return held

    def _suspicious(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
