"""Three real processes: the same request says the same, whatever becomes of the guesses."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.drafting import wait_for_drafting
from support.tiny_models import make_tiny_llama

from foredraft import AsyncClient
from foredraft.config import StackConfig
from foredraft.params import Schedule
from foredraft.results import Result
from foredraft.supervisor.stack import Stack, running_stack

MAX_TOKENS = 40
COMMON: dict[str, Any] = {"max_tokens": MAX_TOKENS, "ignore_eos": True}
REQUESTS: list[tuple[list[int], dict[str, Any]]] = [
    (list(range(5, 5 + 3 * length)), COMMON | options)
    for length, options in enumerate(
        [
            {"temperature": 0.0},
            {"temperature": 0.7, "seed": 1},
            {"temperature": 1.0, "seed": 2},
            {"temperature": 1.0, "seed": 3, "top_p": 0.9},
            {"temperature": 0.7, "seed": 4, "min_p": 0.05},
            {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.3},
            {"temperature": 0.7, "seed": 6, "presence_penalty": 0.5, "frequency_penalty": 0.5},
            {"temperature": 1.0, "seed": 7, "logit_bias": {9: 3.0, 20: -100.0}},
        ],
        start=1,
    )
]


@asynccontextmanager
async def stack(
    target: Path, draft: Path, dtype: str, schedule: Schedule = Schedule.SERIAL
) -> AsyncIterator[tuple[Stack, AsyncClient]]:
    config = StackConfig(
        "127.0.0.1", 0, target, draft=draft, dtype=dtype, schedule=schedule, log_level="warning"
    )
    async with running_stack(config) as running:
        await running.ready()
        async with AsyncClient(running.local_address) as client:
            yield running, client


async def one_by_one(client: AsyncClient, speculation: str) -> list[Result]:
    return [
        await client.generate(prompt, speculation=speculation, **options)
        for prompt, options in REQUESTS
    ]


async def together(client: AsyncClient, speculation: str) -> list[Result]:
    answers = (
        client.generate(prompt, speculation=speculation, **options) for prompt, options in REQUESTS
    )
    return list(await asyncio.gather(*answers))


def ids(results: Sequence[Result]) -> list[list[int]]:
    return [result.token_ids for result in results]


@pytest.mark.asyncio
@pytest.mark.parametrize("dtype", ["auto", pytest.param("float32", marks=pytest.mark.slow)])
async def test_ids_do_not_depend_on_speculation(tmp_path: Path, dtype: str) -> None:
    target = make_tiny_llama(tmp_path / "target", seed=1)
    async with stack(target, target, dtype) as (running, client):
        plain = await one_by_one(client, "off")
        assert all(len(result.token_ids) == MAX_TOKENS for result in plain)
        assert all(result.stats.steps == MAX_TOKENS for result in plain)
        await wait_for_drafting(client)
        for speculation in ("suffix", "model", "auto"):
            assert ids(await together(client, speculation)) == ids(plain), speculation
        assert ids(await one_by_one(client, "auto")) == ids(plain)

        half_way = asyncio.create_task(together(client, "auto"))
        await asyncio.sleep(0.05)
        os.kill(running.pids()["draft"], signal.SIGKILL)
        assert ids(await half_way) == ids(plain)
        await wait_for_drafting(client)
        assert ids(await together(client, "auto")) == ids(plain)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_ids_do_not_depend_on_the_draft(tmp_path: Path) -> None:
    target = make_tiny_llama(tmp_path / "target", seed=1)
    stranger = make_tiny_llama(tmp_path / "stranger", seed=2, layers=1, hidden=32)
    async with stack(target, stranger, "auto") as (_, client):
        plain = await one_by_one(client, "off")
        await wait_for_drafting(client)
        assert ids(await one_by_one(client, "model")) == ids(plain)
        assert ids(await together(client, "auto")) == ids(plain)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_twins_guesses_are_all_accepted(tmp_path: Path) -> None:
    target = make_tiny_llama(tmp_path / "target", seed=1)
    async with stack(target, target, "auto") as (_, client):
        await wait_for_drafting(client)
        for prompt, options in REQUESTS:
            result = await client.generate(prompt, speculation="model", **options)
            stats = result.stats
            accepted = sum(stats.accepted_by_depth)
            assert stats.completion_tokens == len(result.token_ids) == MAX_TOKENS
            assert stats.tokens_per_step == pytest.approx(MAX_TOKENS / stats.steps)
            assert accepted >= MAX_TOKENS - stats.steps
            assert stats.steps < MAX_TOKENS / 2


@pytest.mark.slow
@pytest.mark.asyncio
async def test_suffix_guesses_pay_on_the_default_model(default_model: Path) -> None:
    """Same ids in the default configuration, in far fewer steps where the text repeats itself."""
    line = "def area(width, height):\n    return width * height\n"
    prompt = f"Repeat this code three times.\n{line * 3}\nAnswer:\n{line}"
    config = StackConfig("127.0.0.1", 0, default_model, log_level="warning")
    async with running_stack(config) as running:
        await running.ready()
        async with AsyncClient(running.local_address) as client:
            plain = await client.generate(prompt, max_tokens=64, speculation="off")
            drafted = await client.generate(prompt, max_tokens=64, speculation="suffix")
            chat = [{"role": "user", "content": "Name three colours."}]
            answer = await client.generate(messages=chat, max_tokens=24, temperature=0.7, seed=3)
            again = await client.generate(
                messages=chat, max_tokens=24, temperature=0.7, seed=3, speculation="off"
            )
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.steps < plain.stats.steps / 2
    assert (answer.text, answer.token_ids) == (again.text, again.token_ids)
