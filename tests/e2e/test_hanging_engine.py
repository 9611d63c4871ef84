"""An engine that hangs in an answer, which goes on at another worker; one that is merely slow."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fakes import gateway, until
from support.tiny_models import make_tiny_llama

from foredraft import AsyncClient
from foredraft.config import EngineConfig, VerifyConfig
from foredraft.v1 import verify_pb2_grpc
from foredraft.wire import pulse
from foredraft.wire.channel import bind, private_server
from foredraft.wire.health import Health
from foredraft.wire.interceptor import ErrorInterceptor
from gateway import link
from verify_service import host_steps
from verify_service.server import VerifyServicer, Worker

ASKED: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "temperature": 1.0, "seed": 5}
STEPS = 6  # the engine hangs in this one of the answer


class Hanging:
    """In the place of the engine's steps: one of them waits for the test."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.left = 0  # steps up to the one that hangs, itself included
        self.hung: list[Any] = []
        self.go_on = threading.Event()

    def __call__(self, runner: Any, trees: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.hung.append(runner)
            assert self.go_on.wait(60)
        return self._run(runner, trees)


@asynccontextmanager
async def verify_worker(model: Path, address: str) -> AsyncIterator[Worker]:
    """A real one in this process."""
    worker = Worker(VerifyConfig("unused", EngineConfig(model, kv_memory_mib=1)))
    health = Health("verify")
    server = private_server([ErrorInterceptor()])
    verify_pb2_grpc.add_VerifyServiceServicer_to_server(VerifyServicer(worker), server)
    await health.attach(server)
    bind(server, address)
    await server.start()
    running = asyncio.create_task(worker.run(health))
    try:
        yield worker
    finally:
        await worker.drain()
        await running
        await server.stop(0)
        await asyncio.to_thread(worker.join)


@pytest.mark.asyncio
async def test_an_answer_outlives_an_engine_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_llama(tmp_path / "tiny")
    steps = Hanging(host_steps.run)
    monkeypatch.setattr(host_steps, "run", steps)
    monkeypatch.setattr(pulse, "_SHORTEST_SECONDS", 0.5)
    addresses = [f"unix:{tmp_path}/{name}" for name in ("first", "second")]
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(verify_worker(model, a)) for a in addresses]
        stack.callback(steps.go_on.set)
        running = await stack.enter_async_context(
            gateway(model, addresses[0], others=addresses[1:])
        )
        client = await stack.enter_async_context(AsyncClient(running.address))
        links = running.relay._verify._links
        await until(lambda: all(link.up for link in links))
        whole = await client.generate([5, 6, 7], **ASKED)

        steps.left = STEPS
        answer = await client.generate([5, 6, 7], **ASKED)
        assert answer.token_ids == whole.token_ids and answer.seed == whole.seed
        hung = [w._steps._runner for w in workers].index(steps.hung[0])
        assert [link.well for link in links] == [index != hung for index in range(2)]

        steps.go_on.set()
        await until(lambda: all(link.well for link in links))
        scheduler = workers[hung]._steps._scheduler
        await until(lambda: len(scheduler) == 0)
        again = await asyncio.gather(*(client.generate([5, 6, 7], **ASKED) for _ in range(2)))
        assert [a.token_ids for a in again] == [whole.token_ids] * 2


@pytest.mark.asyncio
async def test_an_answer_of_an_engine_that_is_slow_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every pass of the only target is so late that it counts as hung."""
    model, address = make_tiny_llama(tmp_path / "tiny"), f"unix:{tmp_path}/verify"
    run = host_steps.run
    steps = []

    def late(*args: Any) -> Any:
        steps.append(args)
        time.sleep(0.3)
        return run(*args)

    monkeypatch.setattr(pulse, "_SHORTEST_SECONDS", 0.02)
    monkeypatch.setattr(pulse, "_SLACK", 0.0)
    monkeypatch.setattr(pulse, "_WATCH_SECONDS", 0.02)
    monkeypatch.setattr(link, "PATIENCE_SECONDS", 0.02)
    asked = ASKED | {"max_tokens": 6}
    async with (
        verify_worker(model, address) as worker,
        gateway(model, address) as running,
        AsyncClient(running.address) as client,
    ):
        whole = await client.generate([5, 6, 7], **asked)
        monkeypatch.setattr(host_steps, "run", late)
        answer = await client.generate([5, 6, 7], **asked)
        assert answer.token_ids == whole.token_ids
        assert len(steps) == 6 and len(worker._steps._scheduler) == 0
    assert "says that it does not serve" in caplog.text
