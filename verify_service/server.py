"""The verify service: a gRPC edge around the engine thread."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc

from foredraft.config import VerifyConfig
from foredraft.engine.model_config import check_whole
from foredraft.engine.runner import load_runner
from foredraft.telemetry.setup import current_tracing
from foredraft.v1 import verify_pb2, verify_pb2_grpc
from foredraft.wire.channel import bind, private_server
from foredraft.wire.codec import verify as codec
from foredraft.wire.errors import RETRY_SECONDS, BadMessage, Unavailable
from foredraft.wire.health import Health
from foredraft.wire.interceptor import ErrorInterceptor
from foredraft.wire.messages import Limits, NodeBatch, SequenceErrors, WorkerIdentity
from foredraft.wire.outbox import Outbox, until_taken
from foredraft.wire.pulse import serve_while_it_moves
from foredraft.wire.serving import GRACE_SECONDS, SWITCH_SECONDS, serve_until_stopped
from verify_service.choose_steps import choose_steps
from verify_service.reservations import Reservations
from verify_service.scheduler import Scheduler
from verify_service.step_loop import Arrival, StepLoop
from verify_service.trace import StepTrace

log = logging.getLogger(__name__)

_SHUTTING_DOWN = "the verify service is shutting down"

Context = grpc.aio.ServicerContext[Any, Any]


class Worker:
    """The engine thread and the streams that talk to it."""

    def __init__(self, config: VerifyConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._outboxes: dict[int, Outbox[codec.Response]] = {}
        self._numbers = itertools.count()
        self._steps: StepLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._draining = False
        tracing = current_tracing()
        self._trace = (
            None if tracing is None else StepTrace(tracing, self._loop.call_soon_threadsafe)
        )
        self.identity: WorkerIdentity | None = None

    async def run(self, health: Health) -> None:
        """Load, warm, serve; raises whatever ends the engine thread."""
        loaded: asyncio.Future[None] = self._loop.create_future()
        ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._work, args=(loaded, ended), name="engine", daemon=True
        )
        self._thread.start()
        await asyncio.wait((loaded, ended), return_when=asyncio.FIRST_COMPLETED)
        watching = None
        if self._steps is not None:
            watching = asyncio.create_task(serve_while_it_moves(self._steps.pulse, health))
        try:
            await ended
        finally:
            if watching is not None:
                watching.cancel()

    def open_stream(self) -> tuple[int, Outbox[codec.Response]]:
        """Raises Unavailable while the model is loading and when the worker is to end."""
        self.check()
        number = next(self._numbers)
        outbox: Outbox[codec.Response] = Outbox()
        self._outboxes[number] = outbox
        return number, outbox

    def check(self) -> WorkerIdentity:
        """Who answers here; raises Unavailable as `open_stream` does."""
        if self._draining:
            raise Unavailable(_SHUTTING_DOWN, RETRY_SECONDS)
        if self.identity is None or self._steps is None:
            raise Unavailable("the model is loading", RETRY_SECONDS)
        return self.identity

    def waiting(self) -> int:
        """Messages that the engine has not taken yet."""
        return 0 if self._steps is None else self._steps.inbox.qsize()

    def send(self, stream: int, request: codec.Request | None) -> None:
        """Hand a message of a stream to the engine; None: the stream has ended."""
        if request is None:
            self._outboxes.pop(stream, None)
        if self._trace is not None:
            self._trace.received(stream, request)
        if self._steps is not None:
            self._steps.inbox.put(Arrival(stream, request))

    async def drain(self) -> None:
        """End all streams and the engine thread's loop, and take no new streams."""
        self._draining = True
        for outbox in self._outboxes.values():
            outbox.end(Unavailable(_SHUTTING_DOWN, RETRY_SECONDS))
        if self._steps is not None:
            self._steps.stop()

    def join(self) -> None:
        """Wait for the engine thread: inside a product at the interpreter's end it would abort.

        A model that takes long to load is not waited for: all streams have ended, so the process
        can end as it is.
        """
        self._stopping = True
        if self._thread is not None:
            self._thread.join(GRACE_SECONDS)
            if self._thread.is_alive():
                os._exit(0)

    def _work(self, loaded: asyncio.Future[None], ended: asyncio.Future[None]) -> None:
        """The engine thread's whole life.

        The model is loaded and profiled here too: every thread that computes gets a pool of
        OpenMP threads of its own, and with more of them than cores each product waits for the
        operating system (35 ms steps became 60 ms).
        """
        try:
            self._steps = self._load()
            self._tell(loaded, None)
            if not self._stopping:
                self._steps.run()
        except BaseException as error:
            self._tell(ended, error)
        else:
            self._tell(ended, None)

    def _tell(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        """Settle a future of the event loop, unless nobody waits for it any more."""

        def settle() -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._loop.call_soon_threadsafe(settle)

    def _load(self) -> StepLoop:
        config = self._config
        check_whole(config.engine.model)
        runner = load_runner(config.engine)
        limits = Limits(
            config.max_sequences, config.max_nodes, config.max_depth, runner.kv.total_blocks
        )
        memory = Reservations(runner, config.prefix_share)
        steps = choose_steps(runner, memory, limits)
        cost = steps.warm()
        log.info("step costs: %s ms for %s rows", cost.milliseconds, cost.rows)
        self.identity = WorkerIdentity(runner.info, limits)
        scheduler = Scheduler(memory, runner.info, limits)
        return StepLoop(runner, scheduler, cost, self._publish, self._trace, steps, config.lane)

    def _publish(self, stream: int, response: codec.Response) -> None:
        """Called by the engine thread."""
        self._loop.call_soon_threadsafe(self._deliver, stream, response)

    def _deliver(self, stream: int, response: codec.Response) -> None:
        outbox = self._outboxes.get(stream)
        if outbox is not None:
            outbox.put(response)


class VerifyServicer(verify_pb2_grpc.VerifyServiceServicer):
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Handshake(
        self, request: verify_pb2.VerifyServiceHandshakeRequest, context: Context
    ) -> verify_pb2.VerifyServiceHandshakeResponse:
        return codec.encode_handshake(self._worker.check())

    async def Verify(
        self, request_iterator: AsyncIterator[verify_pb2.VerifyRequest], context: Context
    ) -> AsyncIterator[verify_pb2.VerifyResponse]:
        stream, outbox = self._worker.open_stream()
        reader = asyncio.create_task(self._read(stream, outbox, request_iterator))
        try:
            async for response in outbox.read():
                yield codec.encode_response(response)
        finally:
            reader.cancel()
            self._worker.send(stream, None)

    async def _read(
        self,
        stream: int,
        outbox: Outbox[codec.Response],
        requests: AsyncIterator[verify_pb2.VerifyRequest],
    ) -> None:
        try:
            async for wire in requests:
                await until_taken(self._worker.waiting)
                self._take(stream, outbox, wire)
        except Exception as error:
            outbox.end(error)
        else:
            outbox.end()

    def _take(
        self, stream: int, outbox: Outbox[codec.Response], wire: verify_pb2.VerifyRequest
    ) -> None:
        """Raises BadMessage, which ends the stream: its ends no longer agree on what is open."""
        try:
            request, errors = codec.decode_request(wire)
        except BadMessage as bad:
            if wire.WhichOneof("message") != "nodes":
                raise
            # Guesses are relayed unread, so a bad drafter must not end the target's stream.
            log.warning("guesses were dropped: %s", bad)
            return
        if errors and isinstance(request, NodeBatch):
            log.warning("guesses of %d sequences were dropped: %s", len(errors), errors[0])
        elif errors:
            outbox.put(SequenceErrors(errors))
        self._worker.send(stream, request)


async def serve(config: VerifyConfig) -> None:
    """Serve until SIGTERM or SIGINT."""
    sys.setswitchinterval(SWITCH_SECONDS)
    worker = Worker(config)
    health = Health("foredraft.v1.VerifyService")
    server = private_server([ErrorInterceptor()])
    verify_pb2_grpc.add_VerifyServiceServicer_to_server(VerifyServicer(worker), server)
    bind(server, config.listen)
    try:
        await serve_until_stopped(server, health, worker.run(health), drain=worker.drain)
    finally:
        await asyncio.to_thread(worker.join)
