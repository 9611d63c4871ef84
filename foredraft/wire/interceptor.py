"""One place where exceptions of handlers become gRPC statuses."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from foredraft.wire.details import detailed
from foredraft.wire.errors import describe
from foredraft.wire.unreadable import readable, tolerant

if TYPE_CHECKING:
    _Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _Interceptor = grpc.aio.ServerInterceptor

Handler = Any  # grpc's handler tuples and behaviours are not typed per message


class ErrorInterceptor(_Interceptor):
    """Maps what a handler raises by `errors.describe`; nothing else leaves the process."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = f"{_word(handler.request_streaming)}_{_word(handler.response_streaming)}"
        behaviour = getattr(handler, kind)
        guard = _guard_generator if inspect.isasyncgenfunction(behaviour) else _guard_coroutine
        read = tolerant(handler.request_deserializer)
        return handler._replace(request_deserializer=read, **{kind: guard(behaviour)})


def _word(streaming: bool) -> str:
    return "stream" if streaming else "unary"


def _guard_coroutine(behaviour: Handler) -> Handler:
    @functools.wraps(behaviour)
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(readable(request), context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            await _abort(context, error)

    return guarded


def _guard_generator(behaviour: Handler) -> Handler:
    @functools.wraps(behaviour)
    async def guarded(
        request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        try:
            # Closed here: a dropped call must not wait for the garbage collector to reach it.
            async with contextlib.aclosing(behaviour(readable(request), context)) as responses:
                async for response in responses:
                    yield response
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            await _abort(context, error)

    return guarded


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    fault = describe(error)
    metadata = (*context.trailing_metadata(), *fault.metadata(), *detailed(fault))
    await context.abort(fault.code, fault.message, metadata)
