"""How many requests are taken in at a time; the others are turned away at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from foredraft.wire.errors import Overloaded

WAITING_PER_RUNNING = 3
RETRY_SECONDS = 1.0  # what a client that is turned away is told to wait


class Admission:
    """Running requests and those that wait in the verify worker's queue."""

    def __init__(self, max_sequences: int) -> None:
        self.limit = max_sequences * (1 + WAITING_PER_RUNNING)
        self._inside = 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Hold a place for as long as the request lives.

        Raises:
            Overloaded: there is none.
        """
        if self._inside >= self.limit:
            raise Overloaded(f"the limit of {self.limit} requests is reached", RETRY_SECONDS)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
