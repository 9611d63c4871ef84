"""The verify service as a process: it ends in order, loading or not."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from support.reduced import write_vocabulary
from support.tiny_models import make_tiny_llama

from foredraft.config import EngineConfig, VerifyConfig
from foredraft.engine.model_config import UnsupportedModel
from foredraft.wire.channel import private_channel
from foredraft.wire.health import Health
from foredraft.wire.peers import VerifyPeer
from verify_service.server import Worker


async def start(model: Path, address: str) -> asyncio.subprocess.Process:
    command = ["-m", "foredraft", "serve", "verify", "--listen", address, "--model", str(model)]
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, stderr=asyncio.subprocess.PIPE
    )


async def stop(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    process.send_signal(signal.SIGTERM)
    _, log = await process.communicate()
    return process.returncode, log.decode()


@pytest.mark.asyncio
@pytest.mark.parametrize("loaded", [True, False], ids=["serving", "loading"])
async def test_sigterm_ends_it_with_exit_code_zero(tmp_path: Path, loaded: bool) -> None:
    model = make_tiny_llama(tmp_path / "model")
    address = f"unix:{tmp_path}/verify.sock"
    process = await start(model, address)
    while not (tmp_path / "verify.sock").exists():
        await asyncio.sleep(0.02)
    async with private_channel(address) as channel:
        while loaded:
            try:
                identity = await VerifyPeer(channel).handshake()
            except Exception:
                await asyncio.sleep(0.1)
            else:
                assert identity.model.vocab_size == 128
                break
    code, log = await stop(process)
    assert code == 0, log
    assert "Traceback" not in log
    assert "terminate" not in log


@pytest.mark.asyncio
async def test_a_draft_with_a_reduced_vocabulary_is_no_target(tmp_path: Path) -> None:
    model = write_vocabulary(make_tiny_llama(tmp_path / "few"), [3, 5])
    worker = Worker(VerifyConfig("unix:unused", EngineConfig(model, kv_memory_mib=1)))
    with pytest.raises(UnsupportedModel, match=r"^few has a draft_vocabulary.* but no target"):
        await worker.run(Health("test"))
    worker.join()
