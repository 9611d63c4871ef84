"""The files that lie beside a model's weights and are the same for whatever is made from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

_COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)


def companions(directory: Path) -> Iterator[Path]:
    """Those that are there."""
    return (directory / name for name in _COMPANIONS if (directory / name).is_file())


def copy_companions(directory: Path, destination: Path) -> None:
    for file in companions(directory):
        shutil.copyfile(file, destination / file.name)
