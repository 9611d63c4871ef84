"""The stream to the verify worker: without it there are no answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import grpc

from foredraft.wire.codec.verify import Response
from foredraft.wire.messages import (
    PROTOCOL_VERSION,
    ModelInfo,
    SequenceError,
    SequenceErrors,
    StepResult,
    WorkerIdentity,
)
from foredraft.wire.peers import PeerStream, VerifyMessage, VerifyPeer
from gateway.link import Link, LinkError

logger = logging.getLogger(__name__)

_PENDING_GUESSES = 256


class VerifyEvents(Protocol):
    """Who hears of the target."""

    def verify_up(self, worker: int, identity: WorkerIdentity) -> None: ...

    def verify_down(self, worker: int) -> None: ...

    def verify_health_changed(self, worker: int) -> None: ...

    def step_done(self, worker: int, step: StepResult) -> None: ...

    def sequences_failed(self, errors: tuple[SequenceError, ...]) -> None: ...


class VerifyLink(Link[VerifyMessage, Response]):
    """Accepts the worker only if it uses the gateway's tokenizer and the other workers' model."""

    outbox_size = 65_536

    def __init__(
        self,
        worker: int,
        address: str,
        tokenizer_hash: str,
        served: Callable[[int], ModelInfo | None],
        events: VerifyEvents,
    ) -> None:
        """``served`` tells which model the workers other than this one answer with."""
        super().__init__(address)
        self.worker = worker
        self._served = served
        self._tokenizer_hash = tokenizer_hash
        self._events = events

    def send_guesses(self, nodes: bytes) -> None:
        """Pass a serialized NodeBatch on; guesses are dropped while the worker is behind."""
        if self.up and self._outbox.qsize() < _PENDING_GUESSES:
            self.send(nodes)

    async def _greet(
        self, channel: grpc.aio.Channel
    ) -> tuple[WorkerIdentity, PeerStream[VerifyMessage, Response]]:
        peer = VerifyPeer(channel)
        identity = await peer.handshake()
        if identity.protocol_version != PROTOCOL_VERSION:
            raise LinkError(
                f"the target speaks protocol {identity.protocol_version}, not {PROTOCOL_VERSION}"
            )
        if identity.model.tokenizer_hash != self._tokenizer_hash:
            raise LinkError("the target's tokenizer is not the one of the gateway's model")
        served = self._served(self.worker)
        if served not in (None, identity.model):
            raise LinkError("the target is not the model that the other verify workers serve")
        return identity, peer.open()

    def _came_up(self) -> None:
        if self.identity is not None:
            self._events.verify_up(self.worker, self.identity)

    def _went_down(self) -> None:
        self._events.verify_down(self.worker)

    def _health_changed(self) -> None:
        """It is not left: a replay brings nothing where there is no other one."""
        if self.ill:
            logger.warning("%s says that it does not serve", self.address)
        else:
            logger.warning("%s serves again", self.address)
        self._events.verify_health_changed(self.worker)

    def _receive(self, message: Response) -> None:
        match message:
            case StepResult():
                self._events.step_done(self.worker, message)
            case SequenceErrors(errors):
                self._events.sequences_failed(errors)
