"""Three real processes, one of which is killed or stopped in the middle of eight answers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.drafting import wait_for_drafting
from support.fakes import until
from support.tiny_models import make_tiny_llama

from foredraft import AsyncClient, ForedraftError, Unavailable
from foredraft.config import StackConfig
from foredraft.supervisor.stack import Stack, running_stack

ANSWERS = 8
TOKENS = 400
OPTIONS: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "target", seed=1, context=512)


@asynccontextmanager
async def stack(target: Path, **settings: Any) -> AsyncIterator[tuple[Stack, AsyncClient]]:
    config = StackConfig("127.0.0.1", 0, target, dtype="float32", log_level="warning", **settings)
    async with running_stack(config) as running:
        await running.ready()
        async with AsyncClient(running.local_address) as client:
            yield running, client


class Answers:
    """Eight answers at once, greedy and sampled, and how far they are."""

    def __init__(self, client: AsyncClient, **options: Any) -> None:
        self.ids: list[list[int]] = [[] for _ in range(ANSWERS)]
        self.tasks = [
            asyncio.create_task(self._read(client, number, OPTIONS | options))
            for number in range(ANSWERS)
        ]

    async def under_way(self) -> None:
        await until(lambda: all(len(ids) > 5 for ids in self.ids))
        assert all(len(ids) < TOKENS for ids in self.ids)

    async def all(self) -> list[list[int]]:
        results = await asyncio.gather(*self.tasks)
        assert list(results) == self.ids  # what came in pieces is the whole, each token once
        return self.ids

    async def errors(self) -> list[ForedraftError | None]:
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        return [result if isinstance(result, ForedraftError) else None for result in results]

    async def _read(self, client: AsyncClient, number: int, options: dict[str, Any]) -> list[int]:
        prompt = list(range(5, 8 + 5 * number))
        temperature = 0.8 * (number % 2)
        async with client.stream(prompt, temperature=temperature, seed=number, **options) as stream:
            async for delta in stream:
                self.ids[number] += delta.token_ids
        return stream.result.token_ids


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "stroke",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ["verify", pytest.param("draft", marks=pytest.mark.slow)])
async def test_answers_outlive_their_workers(
    target: Path, name: str, stroke: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack(target, draft=target) as (running, client):
        undisturbed = await Answers(client, speculation="off").all()
        assert all(len(ids) == TOKENS for ids in undisturbed)
        await wait_for_drafting(client)
        answers = Answers(client)
        await answers.under_way()
        old = running.pids()[name]
        os.kill(old, stroke)
        assert await answers.all() == undisturbed
        await until(lambda: running.pids()[name] != old)
        await wait_for_drafting(client)
        in_order = f"{name} (pid {old}) ended with exit code 0" in caplog.text
        assert in_order == (stroke is signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_gateway_that_is_to_end_lets_answers_finish_or_says_so(
    target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack(target) as (running, client):
        answers = Answers(client)
        await answers.under_way()
        old = running.pids()["gateway"]
        os.kill(old, signal.SIGTERM)
        errors = await answers.errors()
        await until(lambda: running.pids()["gateway"] != old)
    for ids, error in zip(answers.ids, errors, strict=True):
        assert len(ids) == TOKENS if error is None else isinstance(error, Unavailable)
    assert f"gateway (pid {old}) ended with exit code 0" in caplog.text


@pytest.mark.slow
@pytest.mark.asyncio
async def test_without_restarts_the_loss_of_the_target_is_told(target: Path) -> None:
    async with stack(target, restart=False) as (running, client):
        answers = Answers(client)
        await answers.under_way()
        os.kill(running.pids()["verify"], signal.SIGKILL)
        errors = await answers.errors()
    assert all(isinstance(error, Unavailable) and error.retry_after == 1.0 for error in errors)
