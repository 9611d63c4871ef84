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
    if len(requests) == 1:  # as nearly always, and without a task for each piece
        news = await _next(0, requests[0])
        while news.finish is None:
            yield news
            news = await _next(0, requests[0])
        yield news
        return
    tasks = {asyncio.create_task(_next(i, request)) for i, request in enumerate(requests)}
    try:
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                news = task.result()
                tasks.remove(task)
                yield news
                if news.finish is None:
                    again = _next(news.index, requests[news.index])
                    tasks.add(asyncio.create_task(again))
    finally:
        for task in tasks:
            task.cancel()
        # Others may have failed as well: asyncio complains of errors that nobody has seen.
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(index: int, request: Request) -> News:
    delta = await request.news()
    return News(index, delta, request.finish)
