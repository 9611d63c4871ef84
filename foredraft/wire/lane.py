"""The lane: a short way between the engine threads of two workers on one host.

A message of gRPC changes threads four times, and a round of commits and guesses that the gateway
relays is four messages: 3 ms on the way, where a small target's step takes 8. On a lane a message
goes from the thread that made it to one that does nothing but read: some 0.1 ms, a round 0.7.

Nothing depends on it. On it is said only what would otherwise be relayed; whatever goes wrong ends
it, and then the gateway relays again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

_MOST_BYTES = 256 * 1024  # more than the operating system lets one message have
_BACKLOG = 16


class Lane:
    """One end. One thread sends, one receives, any may end it."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._buffer = bytearray(_MOST_BYTES)
        # Its number may be that of another file as soon as it is closed.
        self._open = threading.Lock()

    def send(self, message: bytes) -> None:
        """Never waits: a peer that does not read, or a message too long, ends the lane."""
        try:
            with self._open:
                self._end.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            self.end()

    def receive(self) -> bytes | None:
        """Wait for a message; None once the lane has ended."""
        try:
            size = self._end.recv_into(self._buffer)
        except OSError:
            size = 0
        if not size:
            with self._open:
                self._end.close()
            return None
        return bytes(memoryview(self._buffer)[:size])

    def end(self) -> None:
        """Both peers receive no more."""
        with contextlib.suppress(OSError), self._open:  # it has ended already
            self._end.shutdown(socket.SHUT_RDWR)


class LaneListener:
    """Where peers on this host find one; the directory of ``path`` says who may."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if nobody can listen there, or something else than a socket is there."""
        if path.is_socket():  # of a process that was killed
            path.unlink()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(str(path))
        self._door.listen(_BACKLOG)

    def accept(self) -> Lane | None:
        """Wait for a peer; None once this is closed."""
        try:
            end, _ = self._door.accept()
        except OSError:
            self._door.close()
            return None
        return Lane(end)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)


def find_lane(path: Path) -> Lane | None:
    """A lane to whoever listens at ``path``; None if nobody does."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        end.connect(str(path))
    except OSError:
        end.close()
        return None
    return Lane(end)
