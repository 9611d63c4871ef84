"""What makes two tokenizers the same: draft and target must agree on every id."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from foredraft.engine.model_config import UnsupportedModel


@dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """``hash`` covers the whole vocabulary; ``vocab_size`` counts ids without padding rows."""

    hash: str
    vocab_size: int


def read_tokenizer(directory: Path) -> Tokenizer:
    """Read tokenizer.json of a model directory.

    Raises:
        UnsupportedModel: it is missing, cannot be read, or holds no tokenizer.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise UnsupportedModel(f"{file.name} is missing from the model directory")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise UnsupportedModel(f"{file.name} holds no tokenizer: {error}") from error
    if not tokenizer.get_vocab_size(with_added_tokens=True):
        raise UnsupportedModel(f"{file.name} must have at least one token")
    return tokenizer


def tokenizer_identity(directory: Path) -> TokenizerIdentity:
    """Read tokenizer.json of a model directory.

    Raises:
        UnsupportedModel: as `read_tokenizer`.
    """
    vocabulary: dict[str, int] = read_tokenizer(directory).get_vocab(with_added_tokens=True)
    entries = json.dumps(sorted(vocabulary.items(), key=lambda entry: entry[1]))
    return TokenizerIdentity(
        hash=hashlib.sha256(entries.encode("utf-8")).hexdigest(),
        vocab_size=max(vocabulary.values()) + 1,
    )
