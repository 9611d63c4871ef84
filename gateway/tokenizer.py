"""Text to token ids and back, for the served model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from foredraft.tokenizer_hash import read_tokenizer, tokenizer_identity

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

    async def encode(self, text: str) -> tuple[int, ...]:
        """Token ids; a long text is read beside the event loop, which other requests need."""
        if len(text) <= _INLINE_CHARACTERS:
            return self._encode(text)
        return await asyncio.to_thread(self._encode, text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids`` without special tokens."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
