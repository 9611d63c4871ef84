"""Running a server until it is told to stop, and stopping it in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc

from foredraft.wire.health import Health

GRACE_SECONDS = 5.0
_FLUSH_SECONDS = 1.0  # for what calls have said before they ended
# For `sys.setswitchinterval` in a worker: the engine thread is pure Python between tensor
# operations, and with the default of 5 ms it would keep the event loop waiting at every turn.
SWITCH_SECONDS = 0.0005


async def serve_until_stopped(
    server: grpc.aio.Server,
    health: Health,
    work: Coroutine[Any, Any, None],
    *,
    drain: Callable[[], Awaitable[None]] | None = None,
    idle: Callable[[], Awaitable[None]] | None = None,
    grace: float = GRACE_SECONDS,
) -> None:
    """Start ``server`` and run ``work`` beside it until SIGTERM or SIGINT.

    ``work`` loads what the handlers need and then tells ``health``; it may go on as long as the
    server does. If it raises, the server stops and the exception is passed on. Shutting down,
    health says so first, then ``drain`` ends the streams that would outlive the grace time, and
    other calls have ``grace`` seconds to finish. ``idle`` returns earlier if nothing is left that
    is worth waiting for.
    """
    told = _stop_event()
    await health.attach(server)
    await server.start()
    waiting = asyncio.create_task(told.wait())
    working = asyncio.create_task(work)
    try:
        await asyncio.wait((waiting, working), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            await waiting
    finally:
        waiting.cancel()
        await health.shut_down()
        if drain is not None:
            await drain()
        await _stop(server, grace, idle)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _stop(
    server: grpc.aio.Server, grace: float, idle: Callable[[], Awaitable[None]] | None
) -> None:
    stopping = asyncio.create_task(server.stop(grace))
    if idle is not None:
        await _first_of(stopping, asyncio.ensure_future(idle()))
        await asyncio.wait((stopping,), timeout=_FLUSH_SECONDS)
        # Nothing else ends a call whose client does not read: its status waits behind its messages.
        await server.stop(None)
    await stopping


async def _first_of(stopping: asyncio.Task[None], idle: asyncio.Future[None]) -> None:
    try:
        await asyncio.wait((stopping, idle), return_when=asyncio.FIRST_COMPLETED)
    finally:
        idle.cancel()


def _stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT.

    The handlers stay until the process ends: a terminal's interrupt and a supervisor's SIGTERM
    often come together, and the second must not cut the shutdown short.
    """
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    return told
