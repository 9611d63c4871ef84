"""Token ids to text, piece by piece, without tearing characters apart.

A character may be spread over several tokens, so the end of a decoded text is not final while
it shows replacement marks. Nor can tokens be decoded alone: some decoders drop a leading space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# An unfinished character is at most three bytes, each of which may show as one mark.
_UNFINISHED_MARKS = 3


class Detokenizer:
    """The pieces it returns, put together, equal the text of all tokens decoded at once."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        # Tokens from the last but one place where the text was whole: context for what follows.
        self._window: list[int] = []
        self._whole = 0  # tokens of the window up to the last such place
        self._sent = 0  # characters of the window's text that were returned

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that became final with ``tokens``."""
        self._window.extend(tokens)
        text = self._decode(self._window)
        final = _without_unfinished(text)
        piece = text[self._sent : final]
        self._sent = max(self._sent, final)
        if final == len(text):
            self._forget()
        return piece

    def flush(self) -> str:
        """What was held back, as it stands; the end of the text."""
        text = self._decode(self._window)
        piece = text[self._sent :]
        self._sent = max(self._sent, len(text))
        return piece

    def _forget(self) -> None:
        """Drop tokens that no longer influence how the next ones are decoded."""
        if self._whole:
            del self._window[: self._whole]
            self._sent = len(self._decode(self._window))
        self._whole = len(self._window)


def _without_unfinished(text: str) -> int:
    """Length of ``text`` without the replacement marks of a character that may go on."""
    end = len(text)
    for _ in range(_UNFINISHED_MARKS):
        if not text.endswith(REPLACEMENT, 0, end):
            break
        end -= 1
    return end
