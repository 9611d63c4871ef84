"""The other end of a channel, in plain values: what a client of a service needs of gRPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc

from foredraft.v1 import draft_pb2, draft_pb2_grpc, generate_pb2_grpc, verify_pb2, verify_pb2_grpc
from foredraft.wire.codec import draft, verify
from foredraft.wire.messages import (
    PROTOCOL_VERSION,
    CloseSequences,
    OpenSequences,
    VerifyBudget,
    WorkerIdentity,
)

HANDSHAKE_SECONDS = 5.0

Out = TypeVar("Out")
In = TypeVar("In")
VerifyMessage = OpenSequences | bytes | VerifyBudget | CloseSequences


class PeerStream(Generic[Out, In]):
    """A long-lived stream of whole batches in both directions."""

    def __init__(
        self, call: Any, encode: Callable[[Out], Any], decode: Callable[[Any], In]
    ) -> None:
        self._call = call
        self._encode = encode
        self._decode = decode

    async def write(self, message: Out) -> None:
        await self._call.write(self._encode(message))

    async def read(self) -> In | None:
        """The next message; None when the peer has ended the stream.

        Raises:
            grpc.aio.AioRpcError: the peer or the connection failed.
            BadMessage: the peer does not follow the contract.
        """
        wire = await self._call.read()
        ended = wire is grpc.aio.EOF  # type: ignore[attr-defined]
        return None if ended else self._decode(wire)

    def cancel(self) -> None:
        self._call.cancel()


class VerifyPeer:
    """A verify worker."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = verify_pb2_grpc.VerifyServiceStub(channel)

    async def handshake(self) -> WorkerIdentity:
        request = verify_pb2.VerifyServiceHandshakeRequest(protocol_version=PROTOCOL_VERSION)
        response = await self._stub.Handshake(request, timeout=HANDSHAKE_SECONDS)
        return verify.decode_handshake(response)

    def open(self) -> PeerStream[VerifyMessage, verify.Response]:
        return PeerStream(self._stub.Verify(), verify.encode_request, verify.decode_response)


class DraftPeer:
    """A draft worker."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = draft_pb2_grpc.DraftServiceStub(channel)

    async def handshake(self) -> WorkerIdentity:
        request = draft_pb2.DraftServiceHandshakeRequest(protocol_version=PROTOCOL_VERSION)
        response = await self._stub.Handshake(request, timeout=HANDSHAKE_SECONDS)
        return draft.decode_handshake(response)

    def open(self) -> PeerStream[draft.Request, draft.Response]:
        return PeerStream(self._stub.Propose(), draft.encode_request, draft.decode_response)


def generate_stub(channel: grpc.aio.Channel | grpc.Channel) -> Any:
    """The stub of the public service; its calls take and give what `codec.generate` makes."""
    return generate_pb2_grpc.GenerateServiceStub(channel)
