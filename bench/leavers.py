"""Clients that give their requests up, each at another stage."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bench.gauges import FREE_BLOCKS, RUNNING, WAITING, Gauges, Reading
from foredraft.aio import AsyncClient
from foredraft.cli.faults import CommandError
from foredraft.errors import DeadlineExceeded

_AT_ONCE = 16
_LONGEST_SECONDS = 0.3  # from the queue to some way into the answer
_LONGEST_PROMPT = 400  # several chunks of prefill
_MOST_DELTAS = 12
_TOKENS = 4000  # none of them is to end by itself
_PATIENCE_SECONDS = 20.0
_SEED = 7
_WAYS = ("cancel", "deadline", "deltas")

Held = tuple[float, float, float]


class Leavers:
    """``ways`` counts how requests were given up; ``ended`` those that ended all the same."""

    def __init__(self, client: AsyncClient, gauges: Gauges) -> None:
        self._client = client
        self._gauges = gauges
        self._chance = random.Random(_SEED)
        self.ways: Counter[str] = Counter()
        self.ended = 0

    async def leave(self, count: int) -> float | None:
        """Seconds until all that was held is free again; None: it has not come back."""
        before = await self._held()
        places = asyncio.Semaphore(_AT_ONCE)

        async def one() -> None:
            async with places:
                await self._give_up()

        await asyncio.gather(*(one() for _ in range(count)))
        left = time.monotonic()
        while await self._held() != before:
            if time.monotonic() - left > _PATIENCE_SECONDS:
                return None
        return round(time.monotonic() - left, 3)

    async def _held(self) -> Held:
        """Free memory is told with steps: without one it would be that of the last."""
        await self._client.generate("x", max_tokens=1)
        reading: Reading = await self._gauges.read()
        return reading.sum(FREE_BLOCKS), reading.sum(RUNNING), reading.sum(WAITING)

    async def _give_up(self) -> None:
        chance = self._chance
        way, seconds = chance.choice(_WAYS), chance.uniform(0.001, _LONGEST_SECONDS)
        prompt = chance.randrange(1, _LONGEST_PROMPT) * chance.choice("abc")
        asked: dict[str, Any] = {
            "max_tokens": _TOKENS,
            "ignore_eos": True,
            "seed": chance.randrange(2**32),
        }
        self.ways[way] += 1
        try:
            if way == "cancel":
                await asyncio.wait_for(self._client.generate(prompt, **asked), seconds)
            elif way == "deadline":
                await self._client.generate(prompt, timeout=seconds, **asked)
            else:
                await self._read_some(prompt, asked, chance.randrange(1, _MOST_DELTAS))
                return
        except (TimeoutError, DeadlineExceeded):
            return
        self.ended += 1

    async def _read_some(self, prompt: str, asked: Mapping[str, Any], deltas: int) -> None:
        async with self._client.stream(prompt, **asked) as stream:
            async for _ in stream:
                deltas -= 1
                if not deltas:
                    return
        raise CommandError("an answer ended before it was given up")
