"""The products of the models that speeds are told for: ``[N, K]`` of the weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    model: str
    layer: str
    n: int
    k: int

    @property
    def name(self) -> str:
        return f"{self.model} {self.layer}"


LAYERS = (
    Shape("8b", "qkv", 6144, 4096),
    Shape("8b", "o", 4096, 4096),
    Shape("8b", "gate_up", 28672, 4096),
    Shape("8b", "down", 4096, 14336),
    Shape("70b", "qkv", 10240, 8192),
    Shape("70b", "o", 8192, 8192),
    Shape("70b", "gate_up", 57344, 8192),
    Shape("70b", "down", 8192, 28672),
)

HEADS = (
    Shape("8b", "lm_head", 128256, 4096),
    Shape("70b", "lm_head", 128256, 8192),
)

# Of models that are widened from one with a small vocabulary, as ``foredraft bench step`` does.
SMALL_HEADS = (
    Shape("8b", "small head", 49152, 4096),
    Shape("70b", "small head", 49152, 8192),
)
