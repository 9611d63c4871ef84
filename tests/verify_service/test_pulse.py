"""An engine thread that hangs is told by the health service, and so is its return."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import make_tiny_llama

from foredraft.config import EngineConfig, VerifyConfig
from foredraft.params import SamplingParams
from foredraft.wire.health import Health
from foredraft.wire.messages import OpenSequence, OpenSequences, StepResult
from verify_service import host_steps
from verify_service.server import Worker


class Statuses(Health):
    def __init__(self) -> None:
        super().__init__("test")
        self.changes: asyncio.Queue[bool] = asyncio.Queue()

    async def set_serving(self, serving: bool) -> None:
        self.changes.put_nowait(serving)


@pytest.mark.asyncio
async def test_a_hanging_pass_is_not_serving_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    run = host_steps.run

    def hanging(*args: Any) -> Any:
        assert go_on.wait(60)
        return run(*args)

    monkeypatch.setattr(host_steps, "run", hanging)
    engine = EngineConfig(make_tiny_llama(tmp_path / "tiny"), kv_memory_mib=1)
    worker, health = Worker(VerifyConfig("unused", engine)), Statuses()
    running = asyncio.create_task(worker.run(health))
    try:
        assert await health.changes.get()
        stream, outbox = worker.open_stream()
        opened = OpenSequence(1, 1, (5, 6, 7), SamplingParams(max_tokens=1))
        worker.send(stream, OpenSequences((opened,)))
        assert not await health.changes.get()
        go_on.set()
        assert await health.changes.get()
        assert isinstance(await anext(aiter(outbox.read())), StepResult)
    finally:
        go_on.set()
        await worker.drain()
        await running
        await asyncio.to_thread(worker.join)
