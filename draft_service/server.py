"""The gRPC edge of the draft service."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from draft_service.answers import Answer
from draft_service.drafter import Drafter
from draft_service.identity import announced, mismatch, read_target
from draft_service.lanes import Lanes
from draft_service.letters import Letters
from draft_service.loop import DraftLoop, StreamEnded
from draft_service.suffix_store import SuffixStore
from draft_service.trace import DraftTrace
from foredraft.config import DraftConfig, EngineConfig
from foredraft.engine.model_config import UnsupportedModel
from foredraft.policy.threshold import CORES_BURDEN
from foredraft.telemetry.setup import current_tracing
from foredraft.v1 import draft_pb2 as pb
from foredraft.v1 import draft_pb2_grpc
from foredraft.wire.channel import bind, private_server
from foredraft.wire.codec.draft import decode_request, encode_handshake, encode_response
from foredraft.wire.errors import RETRY_SECONDS, Failed, Unavailable
from foredraft.wire.health import Health
from foredraft.wire.interceptor import ErrorInterceptor
from foredraft.wire.messages import (
    Limits,
    ModelInfo,
    Nack,
    WorkerIdentity,
)
from foredraft.wire.outbox import Outbox, until_taken
from foredraft.wire.pulse import Pulse, serve_while_it_moves
from foredraft.wire.serving import SWITCH_SECONDS, serve_until_stopped

if TYPE_CHECKING:
    from draft_service.engine.draft_engine import DraftEngine

SERVICE = "foredraft.v1.DraftService"
SHUTTING_DOWN = "the draft service is shutting down"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    """What is loaded before the service answers."""

    identity: WorkerIdentity
    drafter: Drafter


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """Streams of gateways on one side, the engine thread on the other."""

    def __init__(self) -> None:
        self._identity: WorkerIdentity | None = None
        self._engine: DraftLoop | None = None
        self._outboxes: dict[int, Outbox[pb.ProposeResponse]] = {}
        self._numbers = itertools.count(1)
        self._events = asyncio.get_running_loop()
        self._lanes: Lanes | None = None
        self._letters = Letters()
        self._draining = False

    def begin(self, engine: Engine, lane: Path | None = None) -> Pulse:
        """From now on calls are answered; returns the engine thread's pulse.

        ``lane``: where verify workers find one.
        """
        self._identity = engine.identity
        tracing = current_tracing()
        trace = None if tracing is None else DraftTrace(tracing)
        self._engine = DraftLoop(engine.drafter, self._deliver, self._fail, trace)
        self._engine.start()
        if lane is not None:
            try:
                self._lanes = Lanes(lane, self._engine.post_lane)
            except OSError as error:
                log.warning("no lane at %s (%s): guesses are relayed", lane, error.strerror)
        return self._engine.pulse

    async def drain(self) -> None:
        """End all streams and take no new ones."""
        self._draining = True
        for outbox in self._outboxes.values():
            outbox.end(Unavailable(SHUTTING_DOWN, RETRY_SECONDS))

    async def stop(self) -> None:
        """End the engine thread."""
        if self._lanes is not None:
            self._lanes.close()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.stop)

    async def Handshake(
        self, request: pb.DraftServiceHandshakeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DraftServiceHandshakeResponse:
        return encode_handshake(self._ready()[0])

    async def Propose(
        self,
        request_iterator: AsyncIterator[pb.ProposeRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.ProposeResponse]:
        _, engine = self._ready()
        stream = next(self._numbers)
        outbox = self._outboxes[stream] = Outbox()
        reading = asyncio.create_task(self._read(stream, request_iterator, engine, outbox))
        try:
            async for response in outbox.read():
                yield response
        finally:
            del self._outboxes[stream]
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            engine.post(stream, StreamEnded())
            self._letters.forget(stream)

    def _ready(self) -> tuple[WorkerIdentity, DraftLoop]:
        if self._draining:
            raise Unavailable(SHUTTING_DOWN, RETRY_SECONDS)
        if self._identity is None or self._engine is None:
            raise Unavailable("the draft service is still loading", RETRY_SECONDS)
        return self._identity, self._engine

    async def _read(
        self,
        stream: int,
        requests: AsyncIterator[pb.ProposeRequest],
        engine: DraftLoop,
        outbox: Outbox[pb.ProposeResponse],
    ) -> None:
        try:
            async for wire in requests:
                request, errors = decode_request(wire)
                if errors:
                    outbox.put(encode_response(Nack(errors)))
                await until_taken(engine.waiting)
                engine.post(stream, request)
        except Exception as error:
            outbox.end(error)
        else:
            outbox.end()

    def _deliver(self, answers: list[Answer]) -> None:
        """In the engine thread: encode there, so that the event loop only writes."""
        if self._lanes is not None:
            self._lanes.send(answers)
        written = [(answer.stream, self._letters.write(answer)) for answer in answers]
        letters = [(stream, encode_response(letter)) for stream, letter in written if letter]
        if letters:
            self._events.call_soon_threadsafe(self._put, letters)

    def _put(self, encoded: list[tuple[int, pb.ProposeResponse]]) -> None:
        for stream, response in encoded:
            outbox = self._outboxes.get(stream)
            if outbox is not None:
                outbox.put(response)

    def _fail(self, streams: set[int]) -> None:
        self._events.call_soon_threadsafe(self._end, streams)

    def _end(self, streams: set[int]) -> None:
        for stream in streams & self._outboxes.keys():
            text = "drafting failed: open the sequences again"
            self._outboxes[stream].end(Failed(grpc.StatusCode.ABORTED, text))


async def serve(config: DraftConfig) -> None:
    """Serve drafts until SIGTERM or SIGINT."""
    sys.setswitchinterval(SWITCH_SECONDS)
    servicer = DraftServicer()
    server = private_server([ErrorInterceptor()])
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server)
    log.info("listening on %s", bind(server, config.listen))
    health = Health(SERVICE)

    async def work() -> None:
        pulse = servicer.begin(await _load_apart(config), config.lane)
        await serve_while_it_moves(pulse, health)

    try:
        await serve_until_stopped(server, health, work(), drain=servicer.drain)
    finally:
        await servicer.stop()


async def _load_apart(config: DraftConfig) -> Engine:
    """Load in a thread that ends with it.

    A thread that has computed keeps a pool of OpenMP threads of its own until it ends, and with
    more of them than cores each product of the engine thread would wait for the operating system.
    """
    loader = ThreadPoolExecutor(1, "draft-load")
    try:
        return await asyncio.get_running_loop().run_in_executor(loader, load, config)
    finally:
        loader.shutdown(wait=False)


def load(config: DraftConfig) -> Engine:
    """Read the target's identity and load the draft model, if there is one that fits.

    Raises:
        UnsupportedModel: the target's directory holds no model that can be run.
    """
    target = read_target(config.target)
    limits = Limits(config.max_sequences, config.max_nodes, config.max_depth)
    store, keeps = SuffixStore(config.suffix_store), config.suffix_store > 0
    settings = config.engine
    engine = None if settings is None else _load_engine(settings, target)
    if engine is None or settings is None:
        identity = WorkerIdentity(announced(target, None), limits, keeps_texts=keeps)
        return Engine(identity, Drafter(target, limits, store=store))
    from draft_service.model_drafter import ModelDrafter

    engine.warm_up()
    limits = replace(limits, total_blocks=engine.pool.total_blocks)
    identity = WorkerIdentity(announced(target, engine.info), limits, keeps_texts=keeps)
    model = ModelDrafter(engine, target)
    drafter = Drafter(target, limits, model, store, burden=_burden(settings))
    return Engine(identity, drafter)


def _burden(settings: EngineConfig) -> float:
    """Of the draft model's passes: drafts on a CPU have their targets there, as a rule."""
    from foredraft.engine.device import choose_device

    apart = settings.fake is not None or choose_device(settings.device).type != "cpu"
    return 1.0 if apart else CORES_BURDEN


def _load_engine(settings: EngineConfig, target: ModelInfo) -> DraftEngine | None:
    """The draft model; None, and a warning, if it cannot be run or does not fit the target."""
    try:
        reason = mismatch(settings.model, target)
        if reason is None:
            # Imported here: a service of suffix drafts alone starts without torch.
            from draft_service.engine.load import load_engine

            return load_engine(settings, target)
    except UnsupportedModel as error:
        reason = f"draft {settings.model.name} cannot be run: {error}"
    log.warning("%s: only suffix drafts are served", reason)
    return None
