"""The text of one answer: detokenised, watched for stop strings, cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.detokenizer import Detokenizer
from gateway.stop_strings import StopStrings


class TextStream:
    """Takes committed tokens and gives the text that may be shown."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """A stop string is complete: what follows does not belong to the answer."""
        return self._stops.found

    def feed(self, tokens: Sequence[int]) -> tuple[str, int]:
        """The new text, and how many of ``tokens`` belong to the answer."""
        if not self._stops:
            return self._detokenizer.feed(tokens), len(tokens)
        text = ""
        # One by one: the answer ends with the very token that completes a stop string.
        for count, token in enumerate(tokens, 1):
            text += self._stops.feed(self._detokenizer.feed((token,)))
            if self.stopped:
                return text, count
        return text, len(tokens)

    def finish(self) -> str:
        """What was held back, when the answer ends without a stop string."""
        return self._stops.feed(self._detokenizer.flush()) + self._stops.flush()
