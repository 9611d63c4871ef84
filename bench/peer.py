"""What another system's answer is compared by."""

from __future__ import annotations

from dataclasses import dataclass

PEERS = ("transformers", "llama.cpp")  # what the names of other systems begin with


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    token_ids: list[int]
    seconds: float
    first_seconds: float
