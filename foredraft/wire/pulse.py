"""Whether an engine thread still moves: it says how long a pass should take, health looks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from foredraft.wire.health import Health

log = logging.getLogger(__name__)

_SLACK = 8.0  # a pass may take so many times what it should: busy cores, a long context
# To lose a healthy worker costs more than to wait: all that it ran has to be replayed elsewhere.
_SHORTEST_SECONDS = 4.0
_WATCH_SECONDS = 0.25


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


async def serve_while_it_moves(pulse: Pulse, health: Health) -> None:
    """Serving, but for the times when a pass is overdue; until cancelled."""
    serving = False
    while True:
        moves = not pulse.overdue
        if moves != serving:
            serving = moves
            if not moves:
                log.error("a pass takes far longer than it should: not serving until it ends")
            await health.set_serving(serving)
        await asyncio.sleep(_WATCH_SECONDS)
