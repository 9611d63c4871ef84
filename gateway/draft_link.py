"""The stream to the draft worker. Its loss costs speed, never an answer."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

import grpc

from foredraft.params import Speculation
from foredraft.wire.codec.draft import Request as DraftMessage
from foredraft.wire.codec.draft import Response
from foredraft.wire.messages import (
    PROTOCOL_VERSION,
    CloseSequence,
    CloseSequences,
    Commit,
    Commits,
    Nack,
    NodeBlock,
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

    def guesses_came(self, blocks: tuple[NodeBlock, ...]) -> None: ...

    def target(self) -> WorkerIdentity: ...


class DraftLink(Link[DraftMessage, Response]):
    """Knows which sequences the drafter follows.

    A sequence is opened with its whole journal, and again whenever the drafter says that it lost
    track; sequences beyond the drafter's limit are decoded plainly until a place is free.
    """

    def __init__(self, worker: int, address: str, events: DraftEvents) -> None:
        super().__init__(address)
        self.worker = worker
        self._events = events
        self._followed: dict[int, int] = {}  # seq_id -> incarnation
        self._nacks: dict[int, int] = {}

    def open(self, request: Request) -> None:
        """Let the drafter follow a request, if it may be drafted for and there is a place."""
        if self.identity is None or request.plan.speculation is Speculation.OFF:
            return
        others = len(self._followed.keys() - {request.seq_id})
        full = others >= self.identity.limits.max_sequences
        if full or self._nacks.get(request.seq_id, 0) >= _MOST_NACKS:
            return
        self._followed[request.seq_id] = request.incarnation
        self.send(OpenSequences((request.opening(),)))

    def follows(self, request: Request) -> bool:
        return self._followed.get(request.seq_id) == request.incarnation

    def follow(self, committed: Iterable[tuple[Request, Commit]]) -> None:
        """Tell the drafter what a step has committed; the journals hold it already."""
        commits: list[Commit] = []
        for request, commit in committed:
            if self.follows(request):
                commits.append(commit)
            else:
                self.open(request)
        if commits:
            self.send(Commits(tuple(commits)))

    def close(self, request: Request) -> None:
        self._nacks.pop(request.seq_id, None)
        incarnation = self._followed.pop(request.seq_id, None)
        if incarnation is not None:
            self.send(CloseSequences((CloseSequence(request.seq_id, incarnation),)))

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

    def _receive(self, message: Response) -> None:
        match message:
            case NodeBlocks(blocks):
                self._events.guesses_came(blocks)
            case Nack(errors):
                for error in errors:
                    self._lost(error)

    def _lost(self, error: SequenceError) -> None:
        """The drafter lost track: it gets the whole journal with the sequence's next commit."""
        if self._followed.get(error.seq_id) != error.incarnation:
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
