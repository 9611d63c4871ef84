"""How long an event loop lets others wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Lag:
    """``longest``: seconds for which nothing else could run."""

    longest = 0.0


@asynccontextmanager
async def measured() -> AsyncIterator[Lag]:
    lag = Lag()

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            lag.longest = max(lag.longest, now - last)
            last = now

    ticking = asyncio.create_task(tick())
    try:
        yield lag
    finally:
        ticking.cancel()
