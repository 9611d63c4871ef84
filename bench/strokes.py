"""A worker is killed or stopped in the middle of answers that are known from an undisturbed run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.gauges import Gauges, Reading
from foredraft.aio import AsyncClient
from foredraft.cli.faults import CommandError
from foredraft.errors import ForedraftError
from foredraft.params import Speculation
from foredraft.supervisor.stack import Stack

Ids = Sequence[list[int]]

_DRAFT, _VERIFY = "draft", "verify"
_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Stroke:
    """Which worker, and what happens to it."""

    worker: str
    signal: signal.Signals

    @property
    def name(self) -> str:
        done = "stopped" if self.signal is signal.SIGSTOP else "killed"
        return f"{self.worker} worker {done}"


STROKES = (
    Stroke(_DRAFT, signal.SIGKILL),
    Stroke(_VERIFY, signal.SIGKILL),
    Stroke(_VERIFY, signal.SIGSTOP),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds since the stroke, by what had happened then, and what became of the answers."""

    seconds: dict[str, float]
    failed: int
    differing: int


class Answers:
    """One request per prompt, all streaming; each has its ids and the times at which they came."""

    def __init__(
        self,
        client: AsyncClient,
        prompts: Sequence[str],
        tokens: int,
        speculation: Speculation = Speculation.AUTO,
    ) -> None:
        self._options: dict[str, Any] = {
            "max_tokens": tokens,
            "ignore_eos": True,
            "speculation": speculation.name.lower(),
        }
        self.ids: list[list[int]] = [[] for _ in prompts]
        self._times: list[list[float]] = [[] for _ in prompts]
        self._tasks = [
            asyncio.create_task(self._read(client, number, prompt))
            for number, prompt in enumerate(prompts)
        ]

    async def under_way(self) -> None:
        """Return when every answer has begun."""
        await _until(lambda: all(self.ids) or all(task.done() for task in self._tasks))

    async def end(self) -> int:
        """How many failed, once all have ended."""
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        failures = [end for end in ends if isinstance(end, BaseException)]
        for failure in failures:
            if not isinstance(failure, ForedraftError):
                raise failure
        return len(failures)

    def pause_ends(self, began: float) -> list[float]:
        """When each answer went on after its longest silence since ``began``."""
        return [_pause_end([began, *(t for t in times if t > began)]) for times in self._times]

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, client: AsyncClient, number: int, prompt: str) -> None:
        # Ids are taken as they are streamed: one that came twice would stand here twice.
        async with client.stream(prompt, **self._options) as stream:
            async for delta in stream:
                self.ids[number] += delta.token_ids
                self._times[number].append(time.monotonic())


def _pause_end(times: Sequence[float]) -> float:
    pauses = [(later - earlier, later) for earlier, later in pairwise(times)]
    return max(pauses)[1] if pauses else times[0]


class Striker:
    """Asks ``prompts`` of a stack of its own; ``known`` are the ids of the undisturbed answers."""

    def __init__(
        self, stack: Stack, gauges: Gauges, prompts: Sequence[str], tokens: int, known: Ids
    ) -> None:
        self._stack = stack
        self._gauges = gauges
        self._prompts = prompts
        self._tokens = tokens
        self._known = known

    async def strike(self, stroke: Stroke) -> Outcome:
        async with AsyncClient(self._stack.local_address) as client:
            await self._warm(client)
            answers = Answers(client, self._prompts, self._tokens)
            try:
                await answers.under_way()
                return await self._struck(stroke, client, answers)
            finally:
                await answers.cancel()

    async def _warm(self, client: AsyncClient) -> None:
        """Until guesses are accepted."""
        while not (await self._gauges.read()).accepted:
            await client.generate(self._prompts[0], max_tokens=50)

    async def _struck(self, stroke: Stroke, client: AsyncClient, answers: Answers) -> Outcome:
        pid, began = self._stack.pids()[stroke.worker], time.monotonic()
        os.kill(pid, stroke.signal)
        try:
            moments = await self._moments(stroke, pid, client, answers)
        finally:
            self._finish_off(stroke.worker, pid)
        failed = await answers.end()
        if stroke.worker == _VERIFY:
            moments["every answer went on"] = max(answers.pause_ends(began))
        differing = sum(a != b for a, b in zip(answers.ids, self._known, strict=True))
        seconds = {what: round(moment - began, 3) for what, moment in moments.items()}
        return Outcome(seconds, failed, differing)

    async def _moments(
        self, stroke: Stroke, pid: int, client: AsyncClient, answers: Answers
    ) -> dict[str, float]:
        kind, gauges = stroke.worker, self._gauges
        restarting = asyncio.create_task(self._restarted(kind, pid))
        try:
            noticed = await gauges.until(f"{kind} is down", lambda reading: not reading.up(kind))
            back = await gauges.until(f"{kind} is up", lambda reading: reading.up(kind) > 0)
            moments = {"noticed": noticed, "started again": await restarting, "connected": back}
        finally:
            restarting.cancel()
        if kind == _DRAFT:
            moments["guesses accepted"] = await self._accepted_again(client)
        return moments

    async def _restarted(self, worker: str, pid: int) -> float:
        await _until(lambda: self._stack.pids()[worker] != pid)
        return time.monotonic()

    async def _accepted_again(self, client: AsyncClient) -> float:
        """Answers that end meanwhile are followed by others, so that there is what to guess."""
        before = (await self._gauges.read()).accepted

        def more(reading: Reading) -> bool:
            return reading.accepted > before

        async def ask_on() -> None:
            while True:
                await client.generate(self._prompts[0], max_tokens=self._tokens)

        asking = asyncio.create_task(ask_on())
        try:
            return await self._gauges.until("guesses are accepted", more)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    def _finish_off(self, worker: str, pid: int) -> None:
        """A stopped process that nobody has replaced would outlive everything."""
        if self._stack.pids()[worker] == pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 -- nobody is told
        await asyncio.sleep(_POLL_SECONDS)


async def undisturbed(client: AsyncClient, prompts: Sequence[str], tokens: int) -> Ids:
    """Raises CommandError if an answer fails even so."""
    answers = Answers(client, prompts, tokens, Speculation.OFF)
    if await answers.end():
        raise CommandError("an answer failed that nobody disturbed")
    return answers.ids
