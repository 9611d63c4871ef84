"""How the benchmarks read values of their flags; argparse tells what is allowed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any


def names_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads names with commas between them, all of which must be ``known``."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if not set(names) <= set(known):
            allowed = ", ".join(known)
            raise argparse.ArgumentTypeError(f"must be of {allowed}, with commas, not {text!r}")
        return names

    return read


def several(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Reads values with commas between them, each as ``read`` does."""
    return lambda text: [read(part) for part in text.split(",")]


def two_or_more(text: str) -> int:
    """A number of tokens where the first one does not count."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 2, not {text!r}")
    return int(text)
