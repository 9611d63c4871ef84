"""The public gRPC door: one request in, deltas out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

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
from gateway.stall import STALL_SECONDS, StallLimit
from gateway.trace import TRACEPARENT_KEY, Trace, start_trace

SERVICE = "foredraft.v1.GenerateService"

Context = grpc.aio.ServicerContext[Any, Any]


class GenerateService(pb_grpc.GenerateServiceServicer):
    """Validates, opens, relays news; a call that ends in any way frees its sequence at once.

    stall_seconds: for so long a client may take nothing of what waits for it.
    """

    def __init__(
        self, intake: Intake, access: Access, stall_seconds: float = STALL_SECONDS
    ) -> None:
        self._intake = intake
        self._access = access
        self._stall_seconds = stall_seconds

    async def Generate(self, wire: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        async with self._running(codec.decode_request(wire), context) as request:
            deltas = [await request.news()]
            while request.finish is None:
                deltas.append(await request.news())
            return codec.encode_result(request.result(_whole(deltas), self._model_id()))

    async def GenerateStream(self, wire: pb.GenerateStreamRequest, context: Context) -> None:
        async with (
            self._running(codec.decode_stream_request(wire), context) as request,
            StallLimit(self._stall_seconds) as limit,
        ):
            delta = await request.news()
            while request.finish is None:
                await limit.taken(context.write(codec.encode_delta(delta)))
                delta = await request.news()
            last = codec.encode_last(delta, request.result(delta, self._model_id()))
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
        await self._access.begin(_metadata(context, AUTHORIZATION_KEY))
        async with self._intake.running([asked], trace) as [request]:
            await _announce(context, trace, request.plan.params.seed)
            yield request

    def _model_id(self) -> str:
        return self._intake.model().model_id


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
