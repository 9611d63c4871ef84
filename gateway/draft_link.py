"""The stream to the draft worker. Its loss costs speed, never an answer."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import grpc

from foredraft.params import Speculation
from foredraft.wire.codec.draft import Request as DraftMessage
from foredraft.wire.codec.draft import Response
from foredraft.wire.messages import (
    PROTOCOL_VERSION,
    CloseDrafts,
    CloseSequence,
    Commit,
    Commits,
    Nack,
    NodeBlocks,
    OpenSequences,
    SequenceError,
    WorkerIdentity,
)
from foredraft.wire.peers import DraftPeer, PeerStream
from gateway.link import Link, LinkError
from gateway.request import Request

logger = logging.getLogger(__name__)

_MOST_NACKS = 3  # per sequence and stream: a sequence that cannot be followed is left alone


class DraftEvents(Protocol):
    """Who hears of the drafter."""

    def draft_up(self, worker: int, identity: WorkerIdentity) -> None: ...

    def draft_down(self, worker: int) -> None: ...

    def guesses_came(self, message: NodeBlocks) -> None: ...

    def target(self) -> WorkerIdentity: ...


@dataclass(slots=True)
class _Followed:
    """A sequence as the drafter knows it. told: so many of its tokens."""

    incarnation: int
    told: int


class DraftLink(Link[DraftMessage, Response]):
    """Knows which sequences the drafter follows, and up to where.

    A sequence is opened with its whole journal, and again whenever the drafter says that it lost
    track; sequences beyond the drafter's limit are decoded plainly until a place is free.
    """

    def __init__(self, worker: int, address: str, events: DraftEvents) -> None:
        super().__init__(address)
        self.worker = worker
        self._events = events
        self._followed: dict[int, _Followed] = {}  # by seq_id
        self._nacks: dict[int, int] = {}

    @property
    def keeps_texts(self) -> bool:
        """Finished requests are of use to the drafter."""
        return self.identity is not None and self.identity.keeps_texts

    def open(self, request: Request) -> None:
        """Let the drafter follow a request, if it may be drafted for and there is a place."""
        if self.identity is None or request.plan.speculation is Speculation.OFF:
            return
        others = len(self._followed.keys() - {request.seq_id})
        full = others >= self.identity.limits.max_sequences
        if full or self._nacks.get(request.seq_id, 0) >= _MOST_NACKS:
            return
        self._followed[request.seq_id] = _Followed(request.incarnation, request.journal.position)
        self.send(OpenSequences((request.opening(),)))

    def follows(self, request: Request) -> bool:
        known = self._followed.get(request.seq_id)
        return known is not None and known.incarnation == request.incarnation

    def follow(self, committed: Iterable[tuple[Request, Commit]], *, told: bool) -> None:
        """Tell the drafter what a step has committed; the journals hold it already.

        ``told``: where it follows a sequence, it knows.
        """
        news = []
        for request, commit in committed:
            known = self._followed.get(request.seq_id)
            if known is None or known.incarnation != request.incarnation:
                self.open(request)
            else:
                known.told = request.journal.position
                news.append(commit)
        if news and not told:
            self.send(Commits(tuple(news)))

    def catch_up(self, request: Request) -> int:
        """Tell the drafter all that it has not heard of a request, at once; returns the tokens."""
        if not self.follows(request):
            self.open(request)
            return request.journal.position if self.follows(request) else 0
        untold = self._untold(request)
        if untold is None:
            return 0
        self.send(Commits((untold,)))
        return len(untold.tokens)

    def close(self, request: Request, *, tell: bool) -> None:
        """``tell``: what it has not heard of the request yet, too."""
        self._nacks.pop(request.seq_id, None)
        if request.seq_id in self._followed:
            untold = self._untold(request) if tell else None
            incarnation = self._followed.pop(request.seq_id).incarnation
            closing = CloseSequence(request.seq_id, incarnation)
            self.send(CloseDrafts((closing,), () if untold is None else (untold,)))

    def _untold(self, request: Request) -> Commit | None:
        """What the drafter has not heard of a request that it follows, as one commit."""
        known, journal = self._followed[request.seq_id], request.journal
        tokens = tuple(journal.since(known.told))
        if not tokens:
            return None
        position, known.told = known.told, journal.position
        return Commit(request.seq_id, known.incarnation, position, tokens)

    async def _greet(
        self, channel: grpc.aio.Channel
    ) -> tuple[WorkerIdentity, PeerStream[DraftMessage, Response]]:
        peer = DraftPeer(channel)
        identity = await peer.handshake()
        _check(identity, self._events.target())
        return identity, peer.open()

    def _came_up(self) -> None:
        self._followed.clear()
        self._nacks.clear()
        if self.identity is not None:
            self._events.draft_up(self.worker, self.identity)

    def _went_down(self) -> None:
        self._followed.clear()
        self._events.draft_down(self.worker)

    def _health_changed(self) -> None:
        """There is always something else than a drafter that is ill: plain decoding."""
        if self.ill:
            raise LinkError("the worker says that it does not serve")

    def _receive(self, message: Response) -> None:
        match message:
            case NodeBlocks():
                self._events.guesses_came(message)
            case Nack(errors):
                for error in errors:
                    self._lost(error)

    def _lost(self, error: SequenceError) -> None:
        """The drafter lost track: it gets the whole journal with the sequence's next commit."""
        known = self._followed.get(error.seq_id)
        if known is None or known.incarnation != error.incarnation:
            return
        del self._followed[error.seq_id]
        self._nacks[error.seq_id] = self._nacks.get(error.seq_id, 0) + 1
        logger.info("the drafter lost a sequence: %s", error.message)


def _check(draft: WorkerIdentity, target: WorkerIdentity) -> None:
    """Raises LinkError if guesses of this drafter would mean nothing to the target."""
    if draft.protocol_version != PROTOCOL_VERSION:
        raise LinkError(
            f"drafting is off: the drafter speaks protocol {draft.protocol_version}, "
            f"not {PROTOCOL_VERSION}"
        )
    for name in ("tokenizer_hash", "vocab_size"):
        if getattr(draft.model, name) != getattr(target.model, name):
            raise LinkError(
                f"drafting is off: {name} of draft {draft.model.model_id} is not "
                f"that of target {target.model.model_id}"
            )
