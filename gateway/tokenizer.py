"""Text to token ids and back, for the served model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from foredraft.tokenizer_hash import read_tokenizer, tokenizer_identity
from gateway.token_bytes import TokenBytes

_INLINE_CHARACTERS = 4096


class Tokenizer:
    """Adds nothing of its own: raw text gets no special tokens.

    Special tokens that stand in the text itself are recognised, as a chat template needs it.
    """

    def __init__(self, directory: Path) -> None:
        self._tokenizer = read_tokenizer(directory)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.identity = tokenizer_identity(directory)
        self._bytes = TokenBytes(self._tokenizer)

    async def encode(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        """Token ids; ``special`` adds those that the tokenizer puts around a text.

        A long text is read beside the event loop, which other requests need.
        """
        if len(text) <= _INLINE_CHARACTERS:
            return self._encode(text, special)
        return await asyncio.to_thread(self._encode_aside, text, special)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ``ids``; without special tokens unless asked."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not special)
        return text

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for by itself; none for an id that is padding."""
        return self._bytes.of(token)

    def _encode(self, text: str, special: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def _encode_aside(self, text: str, special: bool) -> tuple[int, ...]:
        """The same ids. Only in its batches does the library let go of the interpreter."""
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return tuple(encoding.ids)
