"""Clients that ask again and again, and what the gateway counts meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

Ask = Callable[[int], Awaitable[object]]  # one request, by its number, from start to end


@dataclass(frozen=True, slots=True)
class Throughput:
    """``steps`` are counted once for each request in them."""

    seconds: float
    tokens: float
    steps: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / max(self.steps, 1.0)


class Counters:
    """The gateway's own counters, read from its metrics."""

    def __init__(self, session: aiohttp.ClientSession, http_address: str) -> None:
        self._session = session
        self._url = f"http://{http_address}/metrics"

    async def during(self, seconds: float) -> Throughput:
        """What is counted in so many seconds from now."""
        began, before = time.perf_counter(), await self._read()
        await asyncio.sleep(seconds)
        ended, after = time.perf_counter(), await self._read()
        return Throughput(
            ended - began,
            after["foredraft_generation_tokens_total"]
            - before["foredraft_generation_tokens_total"],
            after["foredraft_steps_total"] - before["foredraft_steps_total"],
        )

    async def _read(self) -> dict[str, float]:
        async with self._session.get(self._url) as response:
            families = text_string_to_metric_families(await response.text())
            return {s.name: s.value for family in families for s in family.samples}


@contextlib.asynccontextmanager
async def clients(count: int, ask: Ask, settle_seconds: float) -> AsyncIterator[None]:
    """``count`` clients are at work inside the block, and have been for ``settle_seconds``.

    Raises:
        Exception: what a request failed with.
    """
    numbers = itertools.count()

    async def ask_on() -> None:
        while True:
            await ask(next(numbers))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask_on()) for _ in range(count)]
        await asyncio.sleep(settle_seconds)
        yield
        for task in tasks:
            task.cancel()
