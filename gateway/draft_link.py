"""The stream to the draft worker. Its loss costs speed, never an answer."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
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
    DraftBudget,
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

_RESTING_STEPS = 16  # a drafter that rests hears of steps so many at a time
_MOST_NACKS = 3  # per sequence and stream: a sequence that cannot be followed is left alone


class DraftEvents(Protocol):
    """Who hears of the drafter."""

    def draft_up(self, worker: int, identity: WorkerIdentity) -> None: ...

    def draft_down(self, worker: int) -> None: ...

    def guesses_came(self, message: NodeBlocks) -> None: ...

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
        self._resting = False
        self._kept: dict[int, Commit] = {}  # by seq_id, of a drafter that rests
        self._kept_steps = 0

    def open(self, request: Request) -> None:
        """Let the drafter follow a request, if it may be drafted for and there is a place."""
        if self.identity is None or request.plan.speculation is Speculation.OFF:
            return
        others = len(self._followed.keys() - {request.seq_id})
        full = others >= self.identity.limits.max_sequences
        if full or self._nacks.get(request.seq_id, 0) >= _MOST_NACKS:
            return
        self._followed[request.seq_id] = request.incarnation
        self._kept.pop(request.seq_id, None)
        self.send(OpenSequences((request.opening(),)))

    def follows(self, request: Request) -> bool:
        return self._followed.get(request.seq_id) == request.incarnation

    def follow(self, committed: Iterable[tuple[Request, Commit]]) -> None:
        """Tell the drafter what a step has committed; the journals hold it already."""
        for request, commit in committed:
            if self.follows(request):
                self._kept[request.seq_id] = _joined(self._kept.get(request.seq_id), commit)
            else:
                self.open(request)
        self._kept_steps += 1
        if not self._resting or self._kept_steps >= _RESTING_STEPS:
            self._send_kept()

    def send_budget(self, budget: DraftBudget) -> None:
        """A budget without nodes lets the drafter rest; it hears of steps now and then."""
        self._send_kept()
        self._resting = budget.max_nodes_per_sequence == 0
        self.send(budget)

    def close(self, request: Request, last: Commit | None) -> None:
        """``last`` is the commit that has ended it, which `follow` was not told of."""
        self._nacks.pop(request.seq_id, None)
        kept = self._kept.pop(request.seq_id, None)
        incarnation = self._followed.pop(request.seq_id, None)
        if incarnation is not None:
            untold = kept if last is None else _joined(kept, last)
            closing = CloseSequence(request.seq_id, incarnation)
            self.send(CloseDrafts((closing,), () if untold is None else (untold,)))

    async def _greet(
        self, channel: grpc.aio.Channel
    ) -> tuple[WorkerIdentity, PeerStream[DraftMessage, Response]]:
        peer = DraftPeer(channel)
        identity = await peer.handshake()
        _check(identity, self._events.target())
        return identity, peer.open()

    def _came_up(self) -> None:
        self._followed.clear()
        self._kept.clear()
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

    def _send_kept(self) -> None:
        kept, self._kept, self._kept_steps = self._kept, {}, 0
        if kept:
            self.send(Commits(tuple(kept.values())))

    def _lost(self, error: SequenceError) -> None:
        """The drafter lost track: it gets the whole journal with the sequence's next commit."""
        if self._followed.get(error.seq_id) != error.incarnation:
            return
        del self._followed[error.seq_id]
        self._kept.pop(error.seq_id, None)
        self._nacks[error.seq_id] = self._nacks.get(error.seq_id, 0) + 1
        logger.info("the drafter lost a sequence: %s", error.message)


def _joined(before: Commit | None, commit: Commit) -> Commit:
    """Two commits in a row as one: a drafter reads their tokens and orphans."""
    if before is None:
        return commit
    return replace(
        commit,
        position=before.position,
        tokens=(*before.tokens, *commit.tokens),
        orphans=(*before.orphans, *commit.orphans),
    )


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
