"""Run a coroutine until it ends or the user has had enough."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

INTERRUPTED = 130  # what shells say of a command that SIGINT ended


def run_until_signal(work: Coroutine[Any, Any, int], interrupted: int) -> int:
    """The exit code of ``work``, or ``interrupted`` if SIGINT or SIGTERM ended it.

    ``work`` is cancelled once and cleans up in its ``finally``; further signals change nothing.
    """
    return asyncio.run(_run(work, interrupted))


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
