"""What comes for several requests at once, in the order in which it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from foredraft.params import FinishReason
from foredraft.results import Delta
from gateway.request import Request


@dataclass(frozen=True, slots=True)
class News:
    """A piece of the answer to request ``index``; ``finish`` is set with its last one."""

    index: int
    delta: Delta
    finish: FinishReason | None


async def all_news(requests: Sequence[Request]) -> AsyncGenerator[News]:
    """Until each request has ended. No more than one delta of each waits to be taken.

    Raises:
        Exception: what a request failed with; the others are not waited for.
    """
    waiting = {asyncio.create_task(_next(i, request)) for i, request in enumerate(requests)}
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for news in sorted((task.result() for task in done), key=lambda news: news.index):
                yield news
                if news.finish is None:
                    again = _next(news.index, requests[news.index])
                    waiting.add(asyncio.create_task(again))
    finally:
        for task in waiting:
            task.cancel()


async def _next(index: int, request: Request) -> News:
    delta = await request.news()
    return News(index, delta, request.finish)
