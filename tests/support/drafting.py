"""Waiting for a stack whose draft model guesses."""

from __future__ import annotations

import asyncio

from foredraft import AsyncClient


async def wait_for_drafting(client: AsyncClient) -> None:
    """Return once guesses of the draft model are used."""
    async with asyncio.timeout(60):
        while True:
            result = await client.generate(
                [5, 6, 7], max_tokens=40, ignore_eos=True, speculation="model"
            )
            if result.stats.verified_nodes:
                return
