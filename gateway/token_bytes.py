"""The bytes of single tokens, as log-probabilities show them.

A token may hold a part of a character, and decoders drop a leading space of what they take for a
whole text. So pieces are read from the vocabulary itself, in the two spellings that tokenizers use.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"  # how SentencePiece writes a space


class TokenBytes:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = set(tokenizer.get_added_tokens_decoder())
        state = b"" if tokenizer.decoder is None else tokenizer.decoder.__getstate__()
        self._byte_level = b'"ByteLevel"' in state

    def of(self, token: int) -> bytes:
        """Empty for an id that the vocabulary does not have."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if token in self._added:
            return bytes(piece, "utf-8")
        if self._byte_level and all(letter in _BYTES for letter in piece):
            return bytes(_BYTES[letter] for letter in piece)
        byte = _BYTE.fullmatch(piece)
        return bytes.fromhex(byte[1]) if byte else bytes(piece.replace(_SPACE, " "), "utf-8")


def _byte_letters() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for letters from 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_letters()
