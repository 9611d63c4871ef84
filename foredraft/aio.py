"""The SDK for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any

import grpc

from foredraft.answer import Answer
from foredraft.call import (
    CONNECT_SECONDS,
    Messages,
    PromptLike,
    build_request,
    check_open,
    key_metadata,
    read_seconds,
    read_text,
    read_timeout,
)
from foredraft.errors import ForedraftError, cut_short, not_reached, translated
from foredraft.results import Delta, Model, Result
from foredraft.telemetry.call import CallSpan
from foredraft.wire.channel import public_channel
from foredraft.wire.codec import generate as codec
from foredraft.wire.peers import generate_stub


class AsyncClient:
    """A connection to a gateway, of one event loop; the options are those of `Client`."""

    def __init__(
        self,
        address: str,
        connect_timeout: float = CONNECT_SECONDS,
        *,
        api_key: str | None = None,
    ) -> None:
        with translated():
            self._metadata = key_metadata(api_key)
            self.address = read_text("address", address)
            self._connect_timeout = read_seconds("connect_timeout", connect_timeout)
        self._connected = False
        self._closed = False
        self._channel = public_channel(address)
        self._stub = generate_stub(self._channel)

    async def generate(
        self,
        prompt: PromptLike | None = None,
        *,
        messages: Messages | None = None,
        model: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 -- the server has to know it
        **options: Any,
    ) -> Result:
        """The whole answer to a text, to token ids or to a chat."""
        with translated():
            check_open(self._closed)
            timeout = read_timeout(timeout)
            wire = codec.encode_request(build_request(prompt, messages, model, options))
        with CallSpan(chat=messages is not None, model=model) as span, translated():
            await self._connect(timeout)
            call = self._stub.Generate(
                wire, timeout=timeout, metadata=(*self._metadata, *span.metadata)
            )
            return span.answered(codec.decode_result(await call))

    def stream(
        self,
        prompt: PromptLike | None = None,
        *,
        messages: Messages | None = None,
        model: str = "",
        timeout: float | None = None,
        **options: Any,
    ) -> AsyncStream:
        """The answer in deltas, as the target commits them; it starts with the first read."""
        with translated():
            check_open(self._closed)
            timeout = read_timeout(timeout)
            request = build_request(prompt, messages, model, options)
            wire = codec.encode_stream_request(request)

        span = CallSpan(chat=messages is not None, model=model)

        async def start() -> Any:
            check_open(self._closed)  # it may have been closed before the first read
            await self._connect(timeout)
            return self._stub.GenerateStream(
                wire, timeout=timeout, metadata=(*self._metadata, *span.metadata)
            )

        return AsyncStream(start, span)

    async def models(self) -> list[Model]:
        """The models that the server answers with."""
        with translated():
            check_open(self._closed)
            await self._connect(None)
            wire = await self._stub.ListModels(
                codec.encode_models_request(), timeout=CONNECT_SECONDS, metadata=self._metadata
            )
        return codec.decode_models(wire)

    async def close(self) -> None:
        """End the connection; what still runs on it ends, and every later call is refused."""
        self._closed = True
        await self._channel.close(None)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _connect(self, within: float | None) -> None:
        """Wait for the server before the first call, but not for ever."""
        if self._connected:
            return
        limit = self._connect_timeout if within is None else min(within, self._connect_timeout)
        try:
            await asyncio.wait_for(self._channel.channel_ready(), limit)
        except TimeoutError:
            raise not_reached(self.address, limit) from None
        self._connected = True


class AsyncStream:
    """Deltas of one answer; `result` is there after the last one.

    Leaving the loop, an exception in it, the end of an ``async with`` block and `cancel` all end
    the request at the server.
    """

    def __init__(self, start: Callable[[], Awaitable[Any]], span: CallSpan) -> None:
        self._start = start
        self._span = span
        self._call: Any = None
        self._metadata: dict[str, Any] = {}
        self._answer = Answer()

    @property
    def result(self) -> Result:
        """The whole answer; after `cancel` what was delivered. RuntimeError before the end."""
        return self._answer.finished()

    def cancel(self) -> None:
        """End the request at the server; `result` then holds what was delivered."""
        self._answer.cancel(self._metadata)
        if self._call is not None:
            self._call.cancel()
        self._span.answered(self._answer.finished())
        self._span.end()

    async def close(self) -> None:
        """As `cancel`."""
        self.cancel()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            while (delta := await self._next()) is not None:
                yield delta
        except ForedraftError as error:
            self._span.end(error)
            raise
        finally:
            self.cancel()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    async def _next(self) -> Delta | None:
        """The next delta; None after the last one and after `cancel`."""
        if self._answer.result is not None:
            return None
        with translated():
            try:
                wire = await self._read()
            except (grpc.RpcError, asyncio.CancelledError):
                # `cancel` of ours ends the loop; a cancelled task must stay cancelled.
                if self._answer.result is None or _cancelling():
                    raise
                return None
        return self._answer.add(wire)

    async def _read(self) -> Any:
        if self._call is None:
            self._call = await self._start()
        wire = await self._call.read()
        if wire is grpc.aio.EOF:  # type: ignore[attr-defined]
            raise cut_short()
        if not self._metadata:
            self._metadata = dict(await self._call.initial_metadata())
        return wire


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
