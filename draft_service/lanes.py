"""Lanes to verify workers on this host: commits come by them, and guesses go back."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from draft_service.answers import Answer, Drafts
from foredraft.wire.codec.draft import decode_commits
from foredraft.wire.codec.nodes import encode_nodes
from foredraft.wire.errors import BadMessage
from foredraft.wire.lane import Lane, LaneListener
from foredraft.wire.messages import Commits

log = logging.getLogger(__name__)


class Lanes:
    """Each has a number of its own, and a thread that reads it.

    ``post`` is called in these threads: with the commits of a lane, or None when it has ended.
    """

    def __init__(self, path: Path, post: Callable[[int, Commits | None], None]) -> None:
        """Raises OSError if nobody can listen at ``path``."""
        self._listener = LaneListener(path)
        self._post = post
        self._numbers = itertools.count(1)
        self._lanes: dict[int, Lane] = {}
        threading.Thread(target=self._accept, name="lanes", daemon=True).start()

    def send(self, answers: Iterable[Answer]) -> None:
        """Send what goes by lanes; never waits. What would go by one that has ended is lost."""
        for answer in answers:
            if isinstance(answer.content, Drafts):
                for number, batch in answer.content.by_lane.items():
                    lane = self._lanes.get(number)
                    if lane is not None:
                        lane.send(encode_nodes(batch))

    def close(self) -> None:
        """End all lanes, and take no new ones."""
        self._listener.close()
        for lane in list(self._lanes.values()):
            lane.end()

    def _accept(self) -> None:
        while (lane := self._listener.accept()) is not None:
            number = next(self._numbers)
            self._lanes[number] = lane
            name = f"lane-{number}"
            threading.Thread(target=self._read, args=(number, lane), name=name, daemon=True).start()

    def _read(self, number: int, lane: Lane) -> None:
        try:
            while (message := lane.receive()) is not None:
                self._post(number, decode_commits(message))
        except BadMessage as bad:
            log.warning("a verify worker's lane is ended: %s", bad)
            lane.end()
        del self._lanes[number]
        self._post(number, None)
