"""A child that hangs is found and replaced; one that is busy or loading is left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.fakes import until

from foredraft.config import StackConfig
from foredraft.supervisor import stack as stack_module
from foredraft.supervisor import watchdog
from foredraft.supervisor.address import reachable
from foredraft.supervisor.child import Child
from foredraft.supervisor.stack import running_stack
from foredraft.supervisor.watchdog import until_hung
from foredraft.wire.channel import bind, private_server
from foredraft.wire.health import Health

SERVER = """
import asyncio, sys
from foredraft.wire.channel import bind, private_server
from foredraft.wire.health import Health

async def serve():
    server, health = private_server([]), Health("test")
    bind(server, sys.argv[1])
    await health.attach(server)
    await health.set_serving(True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(serve())
"""


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_PERIOD_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "_STALL_SECONDS", 0.3)


@asynccontextmanager
async def healthy(address: str) -> AsyncIterator[Health]:
    server, health = private_server([]), Health("test")
    bind(server, address)
    await health.attach(server)
    await server.start()
    yield health
    await server.stop(0)


@pytest.mark.asyncio
async def test_a_stopped_process_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that nobody has seen serving, too: whoever loads is not stopped."""

    def stand_ins(
        config: StackConfig, address: str, directory: Path, http: str | None
    ) -> list[Child]:
        at = {"verify": f"unix:{directory}/verify", "gateway": address}
        command = [sys.executable, "-c", SERVER]
        return [Child(name, [*command, at[name]], dict(os.environ), at[name]) for name in at]

    monkeypatch.setattr(stack_module, "make_children", stand_ins)
    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "_ANSWER_SECONDS", 60.0)
    async with running_stack(StackConfig("127.0.0.1", 0, Path("model"))) as stack:
        await stack.ready()
        before = stack.pids()
        for name in before:
            os.kill(before[name], signal.SIGSTOP)
            await until(lambda name=name: stack.pids()[name] != before[name])
        await stack.ready()
    assert caplog.text.count("is stopped: it is killed") == 2


@pytest.mark.asyncio
async def test_a_process_that_goes_on_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter(["T", "T", "S", "T", "T", "R", "T", "T", "T"])
    monkeypatch.setattr(watchdog, "_state", lambda pid: next(states))
    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0.0)
    assert await watchdog.until_stopped(1) == "is stopped"
    assert not list(states)


@pytest.mark.asyncio
async def test_a_process_that_does_not_answer_is_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = watchdog._Answer
    said = iter([answers.SILENT, answers.SERVING, answers.SILENT, answers.SERVING])

    async def ask(stub: object) -> watchdog._Answer:
        return next(said, answers.SILENT)

    monkeypatch.setattr(watchdog, "_ask", ask)
    assert "did not answer" in await until_hung("127.0.0.1:1", must_serve=True)


def test_the_system_knows_what_is_stopped() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert watchdog._state(process.pid) in "RSD"
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            assert watchdog._state(process.pid) == "T"
        finally:
            process.kill()
    assert watchdog._state(process.pid) == ""


@pytest.mark.asyncio
async def test_a_process_that_loads_is_left_alone(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/server"
    async with healthy(address):
        watching = asyncio.create_task(until_hung(address, must_serve=True))
        await asyncio.sleep(0.6)
        assert not watching.done()
        watching.cancel()


@pytest.mark.asyncio
async def test_a_worker_that_says_for_long_that_it_hangs_is_hung(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/server"
    async with healthy(address) as health:
        await health.set_serving(True)
        worker = asyncio.create_task(until_hung(address, must_serve=True))
        gateway = asyncio.create_task(until_hung(address, must_serve=False))
        await asyncio.sleep(0.3)
        await health.set_serving(False)
        async with asyncio.timeout(20):
            assert "has not served" in await worker
        assert not gateway.done()
    async with asyncio.timeout(20):
        assert "has not served" in await gateway  # it has stopped listening and does not end


@pytest.mark.parametrize(
    ("listened", "reached"),
    [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:2", "[::1]:2"), ("localhost:3", "localhost:3")],
)
def test_a_server_on_all_interfaces_is_asked_on_this_machine(listened: str, reached: str) -> None:
    assert reachable(listened) == reached
