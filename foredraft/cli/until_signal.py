"""Run a coroutine until it ends or the user has had enough."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from threading import Event
from typing import Any

INTERRUPTED = 130  # what shells say of a command that SIGINT ended


def run_until_signal(work: Coroutine[Any, Any, int], interrupted: int) -> int:
    """The exit code of ``work``, or ``interrupted`` if SIGINT or SIGTERM ended it.

    ``work`` is cancelled once and cleans up in its ``finally``; further signals change nothing.
    """
    return asyncio.run(_run(work, interrupted))


def run_stoppable(work: Callable[[Event], int]) -> int:
    """The exit code of ``work``, which runs in a thread of its own and is waited for.

    SIGINT and SIGTERM set the event that it gets.
    """
    stop = Event()

    async def waiting() -> int:
        running = asyncio.create_task(asyncio.to_thread(work, stop))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            return await running

    return run_until_signal(waiting(), INTERRUPTED)


async def _run(work: Coroutine[Any, Any, int], interrupted: int) -> int:
    task = asyncio.create_task(work)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not task.done():
        task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return interrupted
