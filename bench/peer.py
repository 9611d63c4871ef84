"""What another system's answer is compared by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    token_ids: list[int]
    seconds: float
    first_seconds: float
