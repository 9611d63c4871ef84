"""How many requests are taken in at a time; the others are turned away at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foredraft.params import InvalidField
from foredraft.wire.errors import RETRY_SECONDS, Overloaded

WAITING_PER_RUNNING = 3


class Admission:
    """Running requests and those that wait in the verify workers' queues.

    ``max_sequences`` tells how many the workers run at a time; it grows with each that is seen.
    """

    def __init__(self, max_sequences: Callable[[], int]) -> None:
        self._max_sequences = max_sequences
        self._inside = 0

    @property
    def limit(self) -> int:
        return self._max_sequences() * (1 + WAITING_PER_RUNNING)

    @contextmanager
    def enter(self, places: int = 1) -> Iterator[None]:
        """Hold places, one for each sequence, for as long as the request lives.

        Raises:
            InvalidField: there are never so many.
            Overloaded: there are too few just now.
        """
        limit = self.limit
        if places > limit:
            allowed = f"at most {limit} sequences (prompts times n), not {places}"
            raise InvalidField("prompt", allowed)
        if self._inside + places > limit:
            raise Overloaded(f"the limit of {limit} requests is reached", RETRY_SECONDS)
        self._inside += places
        try:
            yield
        finally:
            self._inside -= places
