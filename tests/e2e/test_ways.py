"""However steps are run, and however often that changes, the text stays the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.tiny_directory import make_tiny_directory
from foredraft.aio import AsyncClient
from foredraft.config import FakeEngine, StackConfig
from foredraft.supervisor.stack import running_stack

REQUESTS = 8
ROUNDS = 6


@pytest.mark.slow
@pytest.mark.asyncio
async def test_ids_do_not_depend_on_the_ways_that_are_tried(tmp_path: Path) -> None:
    """Steps are so short that guesses lose: the first way is left and others are tried."""
    config = StackConfig(
        grpc_host="127.0.0.1",
        grpc_port=0,
        model=make_tiny_directory(tmp_path / "stand-in"),
        fake_target=FakeEngine(1.0),
        fake_draft=FakeEngine(0.3, 0.5),
        log_level="error",
    )
    async with running_stack(config) as stack:
        await stack.ready()
        async with AsyncClient(stack.local_address) as client:

            async def ask(number: int, speculation: str):
                return await client.generate(
                    f"{number} questions", max_tokens=192, speculation=speculation
                )

            async def ask_all(speculation: str):
                return await asyncio.gather(*(ask(i, speculation) for i in range(REQUESTS)))

            plain = [result.token_ids for result in await ask_all("off")]
            verified = []
            for _ in range(ROUNDS):
                results = await ask_all("auto")
                assert [result.token_ids for result in results] == plain
                verified.append(sum(result.stats.verified_nodes for result in results))
            assert max(verified) > 0
            assert min(verified) < max(verified)
