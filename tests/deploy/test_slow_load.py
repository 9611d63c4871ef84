"""A model that takes long to load: not serving until it can answer, and then at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest
from support.fakes import gateway, until
from support.tiny_models import make_tiny_llama

from foredraft import AsyncClient, Unavailable
from foredraft.cli.main import main
from foredraft.config import EngineConfig, VerifyConfig
from verify_service.server import Worker, serve
from verify_service.step_loop import StepLoop

SERVING, NOT_SERVING = (0, "SERVING"), (1, "NOT_SERVING")


@pytest.mark.asyncio
async def test_health_is_true_while_the_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loading, may_load = threading.Event(), threading.Event()
    load = Worker._load

    def slow_load(worker: Worker) -> StepLoop:
        loading.set()
        may_load.wait()
        return load(worker)

    async def health(address: str) -> tuple[int, str]:
        """What the probe says, once it is heard: the process may just be busy loading torch."""
        said = ""
        while not said:
            code = await asyncio.to_thread(main, ["health", address])
            said = capsys.readouterr().out.strip()
        return code, said

    monkeypatch.setattr(Worker, "_load", slow_load)
    model = make_tiny_llama(tmp_path / "model")
    worker = f"unix:{tmp_path}/verify.sock"
    async with gateway(model, worker, ready=False) as door, AsyncClient(door.address) as client:
        assert await health(door.address) == NOT_SERVING
        engine = EngineConfig(model, "float32", kv_memory_mib=4)
        task = asyncio.create_task(serve(VerifyConfig(worker, engine)))
        try:
            await until(loading.is_set)
            for _ in range(3):
                assert await health(worker) == await health(door.address) == NOT_SERVING
                with pytest.raises(Unavailable) as refused:
                    await client.generate([5, 6], max_tokens=3)
                assert refused.value.retry_after is not None
            may_load.set()
            await until(lambda: door.relay.ready)
            assert await health(worker) == await health(door.address) == SERVING
            result = await client.generate([5, 6], max_tokens=3, ignore_eos=True)
            assert len(result.token_ids) == 3
        finally:
            may_load.set()
            os.kill(os.getpid(), signal.SIGTERM)
            await task
