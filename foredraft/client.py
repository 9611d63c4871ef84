"""The SDK for programs without an event loop."""

from __future__ import annotations

from collections.abc import Iterator
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
from foredraft.wire.channel import public_sync_channel
from foredraft.wire.codec import generate as codec
from foredraft.wire.peers import generate_stub


class Client:
    """A connection to a gateway; close it or use it in a ``with`` block.

    Options are keywords: max_tokens, min_tokens, temperature, top_p, top_k, min_p,
    repetition_penalty, presence_penalty, frequency_penalty, logit_bias, seed, stop,
    stop_token_ids, ignore_eos, logprobs, speculation ("off", "suffix", "model", "auto").
    ``api_key`` is for a server that wants one; ``timeout`` is in seconds for the whole call. A
    value that is not allowed, and a call after `close`, raise InvalidRequest at the call.
    """

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
        self._channel = public_sync_channel(address)
        self._stub = generate_stub(self._channel)

    def generate(
        self,
        prompt: PromptLike | None = None,
        *,
        messages: Messages | None = None,
        model: str = "",
        timeout: float | None = None,
        **options: Any,
    ) -> Result:
        """The whole answer to a text, to token ids or to a chat."""
        with translated():
            check_open(self._closed)
            timeout = read_timeout(timeout)
            wire = codec.encode_request(build_request(prompt, messages, model, options))
        with CallSpan(chat=messages is not None, model=model) as span, translated():
            self._connect(timeout)
            call = self._stub.Generate.future(
                wire, timeout=timeout, metadata=(*self._metadata, *span.metadata)
            )
            try:
                return span.answered(codec.decode_result(call.result()))
            finally:
                call.cancel()

    def stream(
        self,
        prompt: PromptLike | None = None,
        *,
        messages: Messages | None = None,
        model: str = "",
        timeout: float | None = None,
        **options: Any,
    ) -> Stream:
        """The answer in deltas, as the target commits them."""
        with translated():
            check_open(self._closed)
            timeout = read_timeout(timeout)
            request = build_request(prompt, messages, model, options)
            wire = codec.encode_stream_request(request)
        span = CallSpan(chat=messages is not None, model=model)
        try:
            self._connect(timeout)
            call = self._stub.GenerateStream(
                wire, timeout=timeout, metadata=(*self._metadata, *span.metadata)
            )
        except Exception as error:
            span.end(error)
            raise
        return Stream(call, span)

    def models(self) -> list[Model]:
        """The models that the server answers with."""
        with translated():
            check_open(self._closed)
            self._connect(None)
            wire = self._stub.ListModels(
                codec.encode_models_request(), timeout=CONNECT_SECONDS, metadata=self._metadata
            )
        return codec.decode_models(wire)

    def close(self) -> None:
        """End the connection; what still runs on it ends, and every later call is refused."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _connect(self, timeout: float | None) -> None:
        """Wait for the server before the first call, but not for ever."""
        if self._connected:
            return
        limit = self._connect_timeout if timeout is None else min(timeout, self._connect_timeout)
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout=limit)
        except grpc.FutureTimeoutError:
            raise not_reached(self.address, limit) from None
        finally:
            ready.cancel()
        self._connected = True


class Stream:
    """Deltas of one answer; `result` is there after the last one.

    Leaving the loop, an exception in it, the end of a ``with`` block and `cancel` all end the
    request at the server.
    """

    def __init__(self, call: Any, span: CallSpan) -> None:
        self._call = call
        self._span = span
        self._answer = Answer()

    @property
    def result(self) -> Result:
        """The whole answer; after `cancel` what was delivered. RuntimeError before the end."""
        return self._answer.finished()

    def cancel(self) -> None:
        """End the request at the server; `result` then holds what was delivered."""
        if self._answer.result is None:
            # The call knows its initial metadata only once something was delivered.
            heard = self._call.initial_metadata() if self._answer.started else ()
            self._answer.cancel(dict(heard))
        self._call.cancel()
        self._span.answered(self._answer.finished())
        self._span.end()

    close = cancel

    def __iter__(self) -> Iterator[Delta]:
        try:
            while (delta := self._next()) is not None:
                yield delta
        except ForedraftError as error:
            self._span.end(error)
            raise
        finally:
            self.cancel()

    def _next(self) -> Delta | None:
        """The next delta; None after the last one and after `cancel`."""
        if self._answer.result is not None:
            return None
        with translated():
            try:
                return self._answer.add(next(self._call))
            except StopIteration:
                raise cut_short() from None
            except grpc.RpcError:
                if self._answer.result is None:
                    raise
                return None

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()
