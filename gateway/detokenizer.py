"""Token ids to text, piece by piece, without tearing characters apart.

A character may be spread over several tokens, so the end of a decoded text is not final while
it shows replacement marks. Nor can tokens be decoded alone: some decoders drop a leading space,
and some show every byte of a run as a mark until the last of its characters is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# An unfinished character is at most three bytes, each of which may show as one mark.
_UNFINISHED_MARKS = 3
# After so many tokens without a whole place the marks are no character in the making.
_PATIENCE = 32
# Enough of them to decode the end of the text alone: the character that is torn at the front (at
# most 3 bytes of it are left) and the marks that are still held back (at most 9 bytes).
_KEPT = 16
# Up to so many tokens it is quicker to decode a longer window than to find out anew, at each whole
# place, how long the text of a shorter one is.
_LONG = 8


class Detokenizer:
    """The pieces it returns, put together, equal the text of all tokens decoded at once.

    In text that is no UTF-8 at all the two may show different numbers of replacement marks. The
    work for one token has a bound, whatever came before it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        # The last tokens, from a place where the text was whole: context for what follows.
        self._window: list[int] = []
        self._whole = 0  # tokens of the window up to the last such place
        self._sent = 0  # characters of the window's text that were returned

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that became final with ``tokens``."""
        text = self._decode([*self._window, *tokens])
        if not text.endswith(REPLACEMENT):
            return self._take(tokens, text)
        # One by one: the last place where the text is whole may lie before the last token.
        return "".join(
            self._take((token,), self._decode([*self._window, token])) for token in tokens
        )

    def flush(self) -> str:
        """What was held back, as it stands; the end of the text."""
        text = self._decode(self._window)
        piece = text[self._sent :]
        self._sent = max(self._sent, len(text))
        return piece

    def _take(self, tokens: Sequence[int], text: str) -> str:
        """Append ``tokens``, with which the window's text is ``text``; what became final."""
        was_whole = self._whole == len(self._window)
        if was_whole and text and len(text) == self._sent:
            return ""  # special tokens, which leave no trace: as context they would be none
        self._window.extend(tokens)
        impatient = len(self._window) - self._whole > _PATIENCE
        held = len(text) - len(text.rstrip(REPLACEMENT))
        if impatient:
            held = min(held, _UNFINISHED_MARKS)
        final = len(text) - held
        piece = text[self._sent : final]
        self._sent = max(self._sent, final)
        if not held and (text or impatient):
            self._forget()
        elif held and impatient:
            self._cut(len(text) - self._sent)
        return piece

    def _forget(self) -> None:
        """At a whole place: drop tokens that no longer influence how the next ones are decoded.

        Those from the last whole place to this one stay.
        """
        if len(self._window) > _LONG:
            del self._window[: self._whole]
            self._sent = len(self._decode(self._window))
        self._whole = len(self._window)

    def _cut(self, unsent: int) -> None:
        """Go on from the last tokens alone, in whose text the last ``unsent`` marks are new."""
        del self._window[:-_KEPT]
        self._whole = 0
        self._sent = max(len(self._decode(self._window)) - unsent, 0)
