"""The commands and the environment of compose.yaml, run as plain processes with a tiny model."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.compose import Service, default_profile, read_services
from support.tiny_models import make_tiny_llama

from foredraft import AsyncClient
from foredraft.supervisor.address import claim_port

PORTS = ("50051", "50052", "50053", "8000")
PATIENCE_SECONDS = 120.0


class Containers:
    """Starts, probes and stops services; the few values a container would own are replaced."""

    def __init__(self, services: Mapping[str, Service], directory: Path) -> None:
        self._services = services
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._base = {"PATH": os.environ["PATH"], "HOME": str(directory)}
        ports = {port: str(claim_port("127.0.0.1", 0)) for port in PORTS}
        hosts = ("0.0.0.0", "127.0.0.1", *services)
        self._replaced = {
            f"{host}:{port}": f"127.0.0.1:{free}" for port, free in ports.items() for host in hosts
        } | {
            "/cache": str(directory / "cache"),
            "/lane/socket": str(directory / "lane"),
        }
        self.address = self._replaced["127.0.0.1:50051"]
        self.http_address = self._replaced["127.0.0.1:8000"]

    async def start(self, name: str) -> None:
        service = self._services[name]
        environment = {key: self._here(value) for key, value in service.environment.items()}
        self._running[name] = await asyncio.create_subprocess_exec(
            *self._command(service.command), env=self._base | environment
        )

    async def stop(self, name: str) -> int:
        """As a container engine stops a container; its exit code."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        grace = float(self._services[name].raw["stop_grace_period"].removesuffix("s"))
        return await asyncio.wait_for(process.wait(), grace)

    async def healthy(self, name: str) -> bool:
        kind, *probe = self._services[name].probe
        assert kind == "CMD"
        process = await asyncio.create_subprocess_exec(
            *self._command(probe), env=self._base, stdout=asyncio.subprocess.DEVNULL
        )
        return await process.wait() == 0

    async def until_healthy(self, *names: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for name in names:
                while not await self.healthy(name):
                    assert self._running[name].returncode is None, f"{name} has ended"
                    await asyncio.sleep(0.2)

    def kill(self) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.kill()

    def _command(self, command: Sequence[str]) -> list[str]:
        python, *arguments = command
        assert python == "python"
        return [sys.executable, *map(self._here, arguments)]

    def _here(self, value: str) -> str:
        for old, new in self._replaced.items():
            if value == old or value.endswith(f"={old}"):
                return value.removesuffix(old) + new
        return value


@asynccontextmanager
async def containers(directory: Path, model: Path) -> AsyncIterator[Containers]:
    services = read_services({"FOREDRAFT_MODEL": str(model), "FOREDRAFT_THREADS": "1"})
    chosen = {name: s for name, s in services.items() if s.in_profile(default_profile())}
    running = Containers(chosen, directory)
    try:
        yield running
    finally:
        running.kill()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_stack_starts_answers_recovers_and_stops(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model")
    options = {"max_tokens": 12, "temperature": 1.0, "seed": 1, "ignore_eos": True}
    async with containers(tmp_path, model) as stack:
        await stack.start("gateway")
        await asyncio.sleep(1.0)
        assert not await stack.healthy("gateway")
        await stack.start("verify")
        await stack.start("draft")
        await stack.until_healthy("verify", "draft", "gateway")
        async with AsyncClient(stack.address) as client:
            first = await client.generate([5, 6, 7], **options)
            assert await stack.stop("verify") == 0
            await stack.start("verify")
            await stack.until_healthy("verify", "gateway")
            again = await client.generate([5, 6, 7], **options)
        url = f"http://{stack.http_address}/v1/models"
        with await asyncio.to_thread(urllib.request.urlopen, url, timeout=20) as models:
            assert models.status == 200
        assert len(first.token_ids) == 12
        assert again.token_ids == first.token_ids
        for name in ("gateway", "draft", "verify"):
            assert await stack.stop(name) == 0
