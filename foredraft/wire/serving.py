"""Running a server until it is told to stop, and stopping it in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc

from foredraft.wire.health import Health

GRACE_SECONDS = 5.0
# For `sys.setswitchinterval` in a worker: the engine thread is pure Python between tensor
# operations, and with the default of 5 ms it would keep the event loop waiting at every turn.
SWITCH_SECONDS = 0.0005


async def serve_until_stopped(
    server: grpc.aio.Server,
    health: Health,
    work: Coroutine[Any, Any, None],
    *,
    drain: Callable[[], Awaitable[None]] | None = None,
    grace: float = GRACE_SECONDS,
) -> None:
    """Start ``server`` and run ``work`` beside it until SIGTERM or SIGINT.

    ``work`` loads what the handlers need and then tells ``health``; it may go on as long as the
    server does. If it raises, the server stops and the exception is passed on. Shutting down,
    health says so first, then ``drain`` ends the streams that would outlive the grace time, and
    other calls have ``grace`` seconds to finish.
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
        await server.stop(grace)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


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
