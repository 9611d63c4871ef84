"""What the engine thread has to say, kept back until it would wait for something else anyway."""

from __future__ import annotations

from collections.abc import Callable

from foredraft.wire.codec.verify import Response


class Answers:
    """Responses in the order in which they were given, for the stream of each.

    The thread that writes them out shares the interpreter with the engine's. Told at once, they
    would be encoded while the next step is chosen, and that step would begin later; told when the
    pass has the thread's attention, they cost nothing.
    """

    def __init__(self, publish: Callable[[int, Response], None]) -> None:
        self._publish = publish
        self._waiting: list[tuple[int, Response]] = []

    def put(self, stream: int, response: Response) -> None:
        self._waiting.append((stream, response))

    def tell(self) -> None:
        """Publish all that wait: before a pass, and before waiting for messages."""
        for stream, response in self._waiting:
            self._publish(stream, response)
        self._waiting.clear()
