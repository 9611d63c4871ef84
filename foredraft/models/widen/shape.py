"""The shapes that a model can be widened to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a target, by their names in `ModelConfig`; None is the source's own.

    untied: the head is a matrix of its own, even if the source has its embedding there.
    """

    layers: int | None = None
    hidden: int | None = None
    intermediate: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    untied: bool = False


# Llama 3.1's, but for the vocabulary, which is the source's.
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "llama-8b": Shape(32, 4096, 14_336, 32, 8, 128, untied=True),
        "llama-70b": Shape(80, 8192, 28_672, 64, 8, 128, untied=True),
    }
)
# What a shape in numbers may name.
SIZES = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim")
