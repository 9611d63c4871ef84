"""The engine thread of the draft service.

A model pass on the event loop would hold up every stream and health check, so all drafting
happens here. Messages come in through a queue; whatever piled up during a piece of work is taken
in before the next piece, so that nothing is drafted for a root that is already old.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from draft_service.answers import Answer
from draft_service.drafter import Drafter
from draft_service.trace import DraftTrace
from foredraft.wire.codec.draft import Request
from foredraft.wire.messages import Commits
from foredraft.wire.outbox import MAX_WAITING
from foredraft.wire.pulse import Pulse

log = logging.getLogger(__name__)

_PASS_MS = 500.0  # a draft whose passes take longer is of no use anyway


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The gateway is gone: its sequences are closed."""


@dataclass(frozen=True, slots=True)
class _ByLane:
    """What came by a lane; None: it has ended."""

    lane: int
    commits: Commits | None


@dataclass(frozen=True, slots=True)
class _Stop:
    """The thread ends."""


class DraftLoop:
    """Runs a drafter in a thread of its own.

    ``deliver`` and ``fail`` are called in that thread: with answers as they appear, and with the
    streams that lost their sequences to a fault in the drafter.
    """

    def __init__(
        self,
        drafter: Drafter,
        deliver: Callable[[list[Answer]], None],
        fail: Callable[[set[int]], None],
        trace: DraftTrace | None = None,
    ) -> None:
        self.pulse = Pulse()
        self._drafter = drafter
        self._deliver = deliver
        self._fail = fail
        self._trace = trace
        self._streams: set[int] = set()
        self._inbox: SimpleQueue[tuple[int, Request | StreamEnded] | _ByLane | _Stop] = (
            SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="draft-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, stream: int, message: Request | StreamEnded) -> None:
        """Hand a message to the thread; never blocks."""
        if self._trace is not None:
            request = None if isinstance(message, StreamEnded) else message
            self._trace.received(stream, request)
        self._inbox.put((stream, message))

    def post_lane(self, lane: int, commits: Commits | None) -> None:
        """Hand on commits that came by a lane; None: it has ended. Callable from any thread.

        Commits that are too many are left out: what nobody answers to is told by the gateway.
        """
        if commits is None or self.waiting() < MAX_WAITING:
            self._inbox.put(_ByLane(lane, commits))

    def waiting(self) -> int:
        """Messages that the thread has not taken yet."""
        return self._inbox.qsize()

    def stop(self) -> None:
        """End the thread after the piece of work at hand."""
        self._inbox.put(_Stop())
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                if not self._take_in():
                    return
                with self.pulse.expecting(_PASS_MS):
                    answers = self._drafter.draft()
                self._send(answers)
            except Exception:
                log.exception("drafting failed; its streams are ended")
                self._give_up()

    def _take_in(self) -> bool:
        """Handle all waiting messages, or wait for one if there is no work; False to stop."""
        wait = not self._drafter.busy
        while True:
            try:
                item = self._inbox.get(block=wait)
            except Empty:
                return True
            if isinstance(item, _Stop):
                return False
            if isinstance(item, _ByLane):
                self._follow(item)
            else:
                self._handle(*item)
            wait = False

    def _handle(self, stream: int, message: Request | StreamEnded) -> None:
        if isinstance(message, StreamEnded):
            self._streams.discard(stream)
            self._drafter.end_stream(stream)
            return
        self._streams.add(stream)
        self._send(self._drafter.handle(stream, message))

    def _follow(self, item: _ByLane) -> None:
        if item.commits is None:
            self._drafter.end_lane(item.lane)
        else:
            self._drafter.follow(item.lane, item.commits)

    def _send(self, answers: list[Answer]) -> None:
        if answers:
            self._deliver(answers)
            if self._trace is not None:
                self._trace.drafted(answers)

    def _give_up(self) -> None:
        """Drop all sequences: gateways open them again on new streams."""
        streams, self._streams = self._streams, set()
        for stream in streams:
            self._drafter.end_stream(stream)
        self._fail(streams)
