"""How often a child that dies is started again."""

from __future__ import annotations

from collections import deque

MAX_RESTARTS = 5
WINDOW_SECONDS = 60.0
FIRST_DELAY = 0.2


class RestartLimit:
    """At most five restarts in a minute, each after twice the wait of the one before."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()

    def next_delay(self, now: float) -> float | None:
        """Seconds to wait before the restart, or None when there were too many lately."""
        while self._recent and now - self._recent[0] >= WINDOW_SECONDS:
            self._recent.popleft()
        if len(self._recent) == MAX_RESTARTS:
            return None
        self._recent.append(now)
        return FIRST_DELAY * 2.0 ** (len(self._recent) - 1)
