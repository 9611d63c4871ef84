"""A client that is gone, or does not read: nothing is left behind for it."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from support.fakes import until
from support.http_door import MODEL, door

BODY = {"prompt": "abc", "n": 2, "max_tokens": 200}


def nothing_is_left(at) -> bool:
    closed = {sequence.seq_id for sequence in at.verify.opened}
    return (
        not at.verify.live
        and not at.draft.live
        and {sequence.seq_id for sequence in at.verify.closed} == closed
        and not at.gateway.relay._live
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("commits", [0, 1])
async def test_a_client_that_disconnects_cancels_its_request(model, words, stream, commits):
    async with door(model, drafting=True) as at:
        await until(lambda: at.draft.budgets)
        asking = asyncio.create_task(
            at.client.completions.create(model=MODEL, stream=stream, **BODY)
        )
        await until(lambda: len(at.draft.live) == len(at.verify.live) == 2)
        for _ in range(commits):
            for seq_id in list(at.verify.live):
                at.verify.commit(seq_id, words.say("d"))
        if stream and commits:
            events = await asking
            await anext(events)
            await events.close()
        else:
            asking.cancel()
        await until(lambda: nothing_is_left(at))
        metrics = await (await at.http.get("/metrics")).text()
        assert 'foredraft_requests_total{finish_reason="cancelled"} 2.0' in metrics


@pytest.mark.asyncio
async def test_places_are_free_again_after_many_that_disconnect(model, words):
    async with door(model, drafting=True, max_sequences=2) as at:
        for round_number in range(20):
            asking = asyncio.create_task(at.client.completions.create(model=MODEL, **BODY))
            await until(lambda n=round_number: len(at.verify.opened) == 2 * (n + 1))
            asking.cancel()
        await until(lambda: not at.verify.live)
        at.verify.rounds = (words.end("!"),)
        answer = await at.client.completions.create(model=MODEL, prompt="a", n=8)
        assert len(answer.choices) == 8


@pytest.mark.asyncio
async def test_a_reader_that_is_slow_gets_larger_events(model, words, monkeypatch):
    """What waits for it is one delta, not a queue; the target is never kept waiting."""
    async with door(model) as at:
        gate = asyncio.Event()
        write = web.StreamResponse.write

        async def slow(*arguments):
            await gate.wait()
            await write(*arguments)

        monkeypatch.setattr(web.StreamResponse, "write", slow)
        asking = asyncio.create_task(
            at.client.completions.create(model=MODEL, prompt="a", max_tokens=200, stream=True)
        )
        await until(lambda: at.verify.live)
        [seq_id] = at.verify.live
        for _ in range(100):
            at.verify.commit(seq_id, words.say("d"))
        at.verify.commit(seq_id, words.end("e"))
        await until(lambda: not at.gateway.relay._live)
        gate.set()
        texts = [event.choices[0].text async for event in await asking]
        assert "".join(texts) == 100 * "d" + "e"
        assert len(texts) < 10
