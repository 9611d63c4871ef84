"""Clients that leave at every stage: both workers and the gateway hold what they held before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.fakes import gateway, until
from support.tiny_models import make_tiny_llama

from draft_service.server import DraftServicer, load
from foredraft import AsyncClient, DeadlineExceeded, Overloaded
from foredraft.config import DraftConfig, EngineConfig, VerifyConfig
from foredraft.v1 import draft_pb2_grpc, verify_pb2_grpc
from foredraft.wire.channel import bind, private_server
from foredraft.wire.health import Health
from foredraft.wire.interceptor import ErrorInterceptor
from gateway.server import Gateway
from verify_service.server import VerifyServicer, Worker

SLOTS = 4
CANCELS = 200
AT_ONCE = 12  # running, and as many again in the worker's queue


@dataclass
class Services:
    """Real workers and a gateway in this process."""

    gateway: Gateway
    verify: Worker
    draft: DraftServicer

    def held(self) -> tuple[int, ...]:
        """Everything that a request may hold, wherever it is."""
        assert self.verify._steps is not None and self.draft._engine is not None
        scheduler, drafter = self.verify._steps._scheduler, self.draft._engine._drafter
        assert drafter._model is not None
        relay = self.gateway.relay
        return (
            scheduler.reservations.free_blocks,
            len(scheduler),
            drafter._model._engine.pool.free_blocks,
            len(drafter),
            int(drafter.busy),
            len(relay._live),
            len(relay._running),
            len(relay._stranded),
            len(relay._verify._homes),
            len(relay._draft._homes),
            self.gateway.intake._admission._inside,
        )


@asynccontextmanager
async def services(model: Path, directory: Path) -> AsyncIterator[Services]:
    engine = EngineConfig(model, dtype="float32", kv_memory_mib=2)
    worker = Worker(VerifyConfig("unused", engine, max_sequences=SLOTS))
    verifying = asyncio.create_task(worker.run(Health("verify")))
    drafter = DraftServicer()
    drafter.begin(await asyncio.to_thread(load, DraftConfig("unused", model, engine)))
    async with AsyncExitStack() as ends:
        addresses = []
        for name in ("verify", "draft"):
            server = private_server([ErrorInterceptor()])
            if name == "verify":
                verify_pb2_grpc.add_VerifyServiceServicer_to_server(VerifyServicer(worker), server)
            else:
                draft_pb2_grpc.add_DraftServiceServicer_to_server(drafter, server)
            addresses.append(bind(server, f"unix:{directory}/{name}"))
            await server.start()
            ends.push_async_callback(server.stop, 0)
        ends.push_async_callback(worker.drain)
        ends.push_async_callback(drafter.drain)
        running = await ends.enter_async_context(gateway(model, *addresses))
        await until(lambda: running.relay._draft.up)
        yield Services(running, worker, drafter)
    await verifying
    await drafter.stop()
    await asyncio.to_thread(worker.join)


async def leave(client: AsyncClient, chance: random.Random) -> str:
    """One request that is given up somewhere; how it ended."""
    prompt = [chance.randrange(3, 128) for _ in range(chance.choice((1, 20, 150)))]
    options = {"max_tokens": 60, "ignore_eos": True, "temperature": chance.choice((0.0, 1.0))}
    way = chance.choice(("deadline", "cancel", "deltas"))
    try:
        if way == "deltas":
            deltas = chance.randrange(1, 6)
            async with client.stream(prompt, **options) as stream:
                async for _ in stream:
                    deltas -= 1
                    if deltas == 0:
                        break
        elif way == "cancel":
            await asyncio.wait_for(client.generate(prompt, **options), chance.uniform(0.0, 0.2))
        else:
            await client.generate(prompt, timeout=chance.uniform(0.01, 0.2), **options)
    except (TimeoutError, DeadlineExceeded):
        return way
    except Overloaded:
        return "refused"
    return way if way == "deltas" else "finished"


@pytest.mark.asyncio
async def test_nothing_is_left_of_requests_that_were_given_up(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "tiny")
    chance = random.Random(7)
    async with (
        services(model, tmp_path) as running,
        AsyncClient(running.gateway.address) as client,
    ):
        before = running.held()
        alone = await client.generate([5, 6, 7], max_tokens=20, ignore_eos=True)
        places = asyncio.Semaphore(AT_ONCE)
        ends: list[str] = []

        async def one() -> None:
            async with places:
                ends.append(await leave(client, chance))

        while sum(end not in ("finished", "refused") for end in ends) < CANCELS:
            await asyncio.gather(*(one() for _ in range(40)))
        await until(lambda: running.held() == before)
        assert {"deltas", "cancel", "deadline"} <= set(ends)
        again = await client.generate([5, 6, 7], max_tokens=20, ignore_eos=True)
        assert again.token_ids == alone.token_ids
        await until(lambda: running.held() == before)


@pytest.mark.asyncio
async def test_an_answer_without_a_deadline_has_one(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "tiny")
    async with services(model, tmp_path) as running:
        before = running.held()
        running.gateway.relay._running._seconds = 0.01
        async with AsyncClient(running.gateway.address) as client:
            with pytest.raises(DeadlineExceeded, match="an answer may take"):
                await client.generate([5, 6, 7], max_tokens=250, ignore_eos=True)
        await until(lambda: running.held() == before)
