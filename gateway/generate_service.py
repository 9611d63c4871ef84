"""The public gRPC door: one request in, deltas out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

import grpc

from foredraft.request import GenerateRequest
from foredraft.results import Delta, TokenLogprob
from foredraft.v1 import generate_pb2 as pb
from foredraft.v1 import generate_pb2_grpc as pb_grpc
from foredraft.wire.codec import generate as codec
from foredraft.wire.errors import SEED_KEY, TRACE_ID_KEY
from gateway.access import AUTHORIZATION_KEY, Access
from gateway.intake import Intake
from gateway.request import Request
from gateway.stall import Patience
from gateway.trace import TRACEPARENT_KEY, Trace, start_trace

SERVICE = "foredraft.v1.GenerateService"

_FEW_LOGPROBS = 2**12

Context = grpc.aio.ServicerContext[Any, Any]
Wire = TypeVar("Wire")


class GenerateService(pb_grpc.GenerateServiceServicer):
    """Validates, opens, relays news; a call that ends in any way frees its sequence at once.

    patience: with clients that take nothing of what waits for them.
    """

    def __init__(self, intake: Intake, access: Access, patience: Patience) -> None:
        self._intake = intake
        self._access = access
        self._patience = patience
        self._open = 0
        self._idle = asyncio.Event()

    async def idle(self) -> None:
        """Return when no call is open; one whose client has been given up is not."""
        while self._open:
            self._idle.clear()
            await self._idle.wait()

    async def Generate(self, wire: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        async with self._running(codec.decode_request(wire), context) as request:
            deltas = [await request.news()]
            while request.finish is None:
                deltas.append(await request.news())
            whole = _whole(deltas)
            result = request.result(whole, self._model_id())
            return await _encoded(whole, lambda: codec.encode_result(result))

    async def GenerateStream(self, wire: pb.GenerateStreamRequest, context: Context) -> None:
        async with (
            self._running(codec.decode_stream_request(wire), context) as request,
            self._patience.limit() as limit,
        ):
            delta = await request.news()
            while request.finish is None:
                news = await _encoded(delta, partial(codec.encode_delta, delta))
                await limit.taken(context.write(news))
                delta = await request.news()
            result = request.result(delta, self._model_id())
            last = await _encoded(delta, lambda: codec.encode_last(delta, result))
            await limit.taken(context.write(last))

    async def ListModels(
        self, wire: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        self._access.check(_metadata(context, AUTHORIZATION_KEY))
        return codec.encode_models([self._intake.model()])

    @asynccontextmanager
    async def _running(self, asked: GenerateRequest, context: Context) -> AsyncIterator[Request]:
        """A request from admission to the moment when nobody listens any more."""
        trace = start_trace(_metadata(context, TRACEPARENT_KEY))
        context.set_trailing_metadata(((TRACE_ID_KEY, trace.trace_id),))
        with self._opened():
            tenant = await self._access.begin(_metadata(context, AUTHORIZATION_KEY))
            async with self._intake.running([asked], trace, tenant=tenant) as [request]:
                await _announce(context, trace, request.plan.params.seed)
                yield request

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    def _model_id(self) -> str:
        return self._intake.model().model_id


async def _encoded(delta: Delta, encode: Callable[[], Wire]) -> Wire:
    """What ``encode`` makes of ``delta``; beside the event loop where that takes long.

    Only log-probabilities do: each of them becomes an object of its own.
    """
    count = sum(1 + len(entry.top) for entry in delta.logprobs or ())
    return encode() if count <= _FEW_LOGPROBS else await asyncio.to_thread(encode)


async def _announce(context: Context, trace: Trace, seed: int) -> None:
    """What a client needs to know even if it cancels before the end."""
    metadata = ((TRACE_ID_KEY, trace.trace_id), (SEED_KEY, str(seed)))
    await context.send_initial_metadata(metadata)


def _metadata(context: Context, wanted: str) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == wanted and isinstance(value, str):
            return value
    return None


def _whole(deltas: list[Delta]) -> Delta:
    logprobs: list[TokenLogprob] = [e for delta in deltas for e in delta.logprobs or ()]
    return Delta(
        text="".join(delta.text for delta in deltas),
        token_ids=[token for delta in deltas for token in delta.token_ids],
        logprobs=logprobs if deltas[0].logprobs is not None else None,
    )
