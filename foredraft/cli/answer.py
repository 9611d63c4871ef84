"""Stream one answer to the terminal, and say in one line what it took."""

from __future__ import annotations

import sys
import time
from typing import Any

from foredraft import AsyncClient, Result
from foredraft.cli.connection import Connection
from foredraft.printable import without_controls

_CONNECT_SECONDS = 2.0  # a stack that is up answers at once


async def stream_answer(to: Connection, request: dict[str, Any], show_stats: bool) -> None:
    """Send ``request`` (arguments of ``AsyncClient.stream``) and print its text as it comes."""
    async with AsyncClient(to.address, _CONNECT_SECONDS, api_key=to.api_key) as client:
        began = time.monotonic()
        async with client.stream(**request) as stream:
            async for delta in stream:
                print(shown(delta.text), end="", flush=True)
        seconds = time.monotonic() - began
    print()
    if show_stats:
        print(describe_stats(stream.result, seconds))


def shown(text: str) -> str:
    """An answer is exact in a pipe or a file; at a terminal nothing in it is obeyed."""
    return without_controls(text) if sys.stdout.isatty() else text


def describe_stats(result: Result, seconds: float) -> str:
    """Speed and what speculation did, in one line; defined for an empty answer too."""
    stats = result.stats
    tokens = len(result.token_ids)
    speed = tokens / seconds if seconds > 0 else 0.0
    hit_share = stats.hit_steps / stats.steps if stats.steps else 0.0
    return (
        f"[{tokens} tokens, {speed:.1f} tokens/s, {stats.steps} steps, "
        f"{stats.tokens_per_step:.2f} tokens/step, {hit_share:.0%} hit steps]"
    )
