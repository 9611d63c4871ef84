"""What makes two tokenizers the same: draft and target must agree on every id."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """``hash`` covers the whole vocabulary; ``vocab_size`` counts ids without padding rows."""

    hash: str
    vocab_size: int


def tokenizer_identity(directory: Path) -> TokenizerIdentity:
    """Read tokenizer.json of a model directory."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    entries = json.dumps(sorted(vocabulary.items(), key=lambda entry: entry[1]))
    return TokenizerIdentity(
        hash=hashlib.sha256(entries.encode("utf-8")).hexdigest(),
        vocab_size=max(vocabulary.values()) + 1,
    )
