"""Whether the engine thread still moves: it says how long a pass should take, others look."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_SLACK = 8.0  # a pass may take so many times what it should: busy cores, a long context
_SHORTEST_SECONDS = 1.0


class Pulse:
    """Written by the engine thread, read by any."""

    def __init__(self) -> None:
        self._deadline: float | None = None  # of the pass at hand

    @property
    def overdue(self) -> bool:
        """The pass at hand takes so long that it may never end."""
        deadline = self._deadline
        return deadline is not None and time.monotonic() > deadline

    @contextmanager
    def expecting(self, milliseconds: float) -> Iterator[None]:
        """Around a pass that should take so long."""
        seconds = max(_SHORTEST_SECONDS, _SLACK * milliseconds / 1000)
        self._deadline = time.monotonic() + seconds
        try:
            yield
        finally:
            self._deadline = None
