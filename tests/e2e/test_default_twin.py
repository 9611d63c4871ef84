"""The default model drafts for itself: the default configuration at its real size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.drafting import wait_for_drafting

from foredraft import AsyncClient
from foredraft.config import StackConfig
from foredraft.params import Schedule
from foredraft.supervisor.stack import running_stack

CHAT = [{"role": "user", "content": "Explain in three sentences why the sky is blue."}]
GREEDY: dict[str, Any] = {"max_tokens": 24}
SAMPLED: dict[str, Any] = {"max_tokens": 24, "temperature": 0.7, "top_p": 0.9, "seed": 11}


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_twin_of_the_default_model_changes_nothing_but_the_steps(
    default_model: Path,
) -> None:
    config = StackConfig(
        "127.0.0.1",
        0,
        default_model,
        draft=default_model,
        schedule=Schedule.SERIAL,
        log_level="warning",
    )
    async with running_stack(config) as running:
        await running.ready()
        async with AsyncClient(running.local_address) as client:
            await wait_for_drafting(client)
            for options in (GREEDY, SAMPLED):
                plain = await client.generate(messages=CHAT, speculation="off", **options)
                drafted = await client.generate(messages=CHAT, **options)
                assert len(plain.token_ids) == plain.stats.steps == 24
                assert drafted.token_ids == plain.token_ids
                assert drafted.text == plain.text
                if options is GREEDY:
                    # Guesses are tried before their price is known, whatever it is.
                    assert drafted.stats.steps < plain.stats.steps
