"""The draft that is shipped for the default model: the same answers, in far fewer steps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.drafting import wait_for_drafting

from foredraft import AsyncClient
from foredraft.config import StackConfig
from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.models.resolve import resolve_draft
from foredraft.params import Schedule
from foredraft.supervisor.stack import running_stack

FIXTURE = Path(__file__).parents[1] / "fixtures" / "spec_bench_greedy.json"
SAMPLED: dict[str, Any] = {"max_tokens": 12, "temperature": 0.9, "top_p": 0.95, "seed": 11}


@pytest.mark.parametrize(("every", "most"), [(40, 24), pytest.param(1, 64, marks=pytest.mark.slow)])
@pytest.mark.asyncio
async def test_answers_are_those_of_transformers(
    default_model: Path, every: int, most: int
) -> None:
    """Greedy ones, through the services, several at once; sampled ones are those without drafts."""
    rows = json.loads(FIXTURE.read_text(encoding="utf-8"))["prompts"][::every]
    draft = resolve_draft("auto", DEFAULT_MODEL)
    assert draft is not None
    config = StackConfig(
        "127.0.0.1",
        0,
        default_model,
        draft=draft,
        dtype="float32",
        schedule=Schedule.SERIAL,
        log_level="warning",
    )
    async with running_stack(config) as running:
        await running.ready()
        async with AsyncClient(running.local_address) as client:
            await wait_for_drafting(client)
            answers = await asyncio.gather(
                *(client.generate(row["prompt_ids"], max_tokens=most) for row in rows)
            )
            prompt = rows[0]["prompt_ids"]
            drafted = await client.generate(prompt, **SAMPLED)
            plain = await client.generate(prompt, speculation="off", **SAMPLED)
    assert [list(answer.token_ids) for answer in answers] == [
        row["token_ids"][:most] for row in rows
    ]
    assert drafted.token_ids == plain.token_ids
    # How many guesses a step verifies depends on what rows cost on this machine, now.
    guessed = [*answers, drafted]
    assert sum(len(x.token_ids) for x in guessed) > sum(x.stats.steps for x in guessed)
