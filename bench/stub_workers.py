"""Workers with the real protocol and no model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.tree.node_id import child_id, path_id, start_id
from foredraft.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from foredraft.wire.channel import bind, private_server
from foredraft.wire.codec import draft as draft_codec
from foredraft.wire.codec import verify as verify_codec
from foredraft.wire.codec.nodes import encode_nodes
from foredraft.wire.messages import (
    CloseDrafts,
    Limits,
    ModelInfo,
    NodeBatch,
    NodeBlock,
    NodeBlocks,
    NodeGroup,
    OpenSequence,
    OpenSequences,
    Source,
    WorkerIdentity,
)

_CONTEXT = 2048
Context = grpc.aio.ServicerContext[Any, Any]


def stub_identity(model: Path) -> WorkerIdentity:
    """Claims to serve the model of a directory."""
    tokenizer = tokenizer_identity(model)
    info = ModelInfo(model.name, tokenizer.hash, tokenizer.vocab_size, _CONTEXT, ())
    return WorkerIdentity(info, Limits(max_sequences=64, max_nodes=64, max_depth=32))


class _StubServer:
    def __init__(self, address: str) -> None:
        self._server = private_server([])
        bind(self._server, address)

    async def __aenter__(self) -> _StubServer:
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.stop(0.5)


class StubVerifier(_StubServer, verify_pb2_grpc.VerifyServiceServicer):
    """Decodes what comes and never takes a step."""

    def __init__(self, address: str, identity: WorkerIdentity) -> None:
        super().__init__(address)
        self._identity = identity
        self._arrival: asyncio.Future[float] | None = None
        verify_pb2_grpc.add_VerifyServiceServicer_to_server(self, self._server)

    def next_batch(self) -> asyncio.Future[float]:
        """When the next batch of guesses is decoded."""
        self._arrival = asyncio.get_running_loop().create_future()
        return self._arrival

    async def Handshake(
        self, request: verify_pb2.VerifyServiceHandshakeRequest, context: Context
    ) -> verify_pb2.VerifyServiceHandshakeResponse:
        return verify_codec.encode_handshake(self._identity)

    async def Verify(
        self, request_iterator: AsyncIterator[verify_pb2.VerifyRequest], context: Context
    ) -> AsyncIterator[verify_pb2.VerifyResponse]:
        async for wire in request_iterator:
            request, _ = verify_codec.decode_request(wire)
            if isinstance(request, NodeBatch) and self._arrival is not None:
                self._arrival.set_result(time.perf_counter())
                self._arrival = None
        return
        yield  # an async generator, as the service's other side expects


class StubDrafter(_StubServer, draft_pb2_grpc.DraftServiceServicer):
    """Guesses a chain below the prompt of every open sequence, when told to."""

    def __init__(self, address: str, identity: WorkerIdentity) -> None:
        super().__init__(address)
        self._identity = identity
        self._opened: dict[int, OpenSequence] = {}
        self._changed = asyncio.Condition()
        self._outbox: asyncio.Queue[NodeBlocks] = asyncio.Queue()
        draft_pb2_grpc.add_DraftServiceServicer_to_server(self, self._server)

    async def wait_for_sequences(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._opened) == count)

    def make_guesses(self, nodes: int) -> NodeBatch:
        return NodeBatch(tuple(_chain(opened, nodes) for opened in self._opened.values()))

    def send_guesses(self, batch: NodeBatch) -> None:
        block = NodeBlock(0, encode_nodes(batch))
        self._outbox.put_nowait(NodeBlocks((block,)))

    async def Handshake(
        self, request: draft_pb2.DraftServiceHandshakeRequest, context: Context
    ) -> draft_pb2.DraftServiceHandshakeResponse:
        return draft_codec.encode_handshake(self._identity)

    async def Propose(
        self, request_iterator: AsyncIterator[draft_pb2.ProposeRequest], context: Context
    ) -> AsyncIterator[draft_pb2.ProposeResponse]:
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            while True:
                yield draft_codec.encode_response(await self._outbox.get())
        finally:
            reader.cancel()

    async def _read(self, requests: AsyncIterator[draft_pb2.ProposeRequest]) -> None:
        async for wire in requests:
            request, _ = draft_codec.decode_request(wire)
            async with self._changed:
                match request:
                    case OpenSequences(sequences):
                        self._opened |= {opened.seq_id: opened for opened in sequences}
                    case CloseDrafts(sequences):
                        for close in sequences:
                            self._opened.pop(close.seq_id, None)
                self._changed.notify_all()


def _chain(opened: OpenSequence, nodes: int) -> NodeGroup:
    root = path_id(start_id(opened.seq_id, opened.incarnation), opened.prompt)
    parents = [root]
    for token in range(nodes - 1):
        parents.append(child_id(parents[-1], token))
    return NodeGroup(
        seq_id=opened.seq_id,
        incarnation=opened.incarnation,
        root_id=root,
        complete=True,
        tokens=tuple(range(nodes)),
        parent_ids=tuple(parents),
        confidences=(0.9,) * nodes,
        sources=(Source.SUFFIX,) * nodes,
    )
