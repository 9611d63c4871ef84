"""What the stack does when one of its processes ends: told with stand-ins for all three."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes import running

from foredraft.config import StackConfig, usable_cores
from foredraft.params import Speculation
from foredraft.supervisor import stack as stack_module
from foredraft.supervisor.child import Child
from foredraft.supervisor.commands import make_children
from foredraft.supervisor.stack import Stack, StackError, running_stack

WORKER = "import time; time.sleep(600)"
DYING = "raise SystemExit(7)"
GATEWAY = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
server = grpc.server(ThreadPoolExecutor(1))
servicer = health.HealthServicer()
servicer.set("", health_pb2.HealthCheckResponse.SERVING)
health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
"""


def config(*, restart: bool = True) -> StackConfig:
    return StackConfig("127.0.0.1", 0, Path("model"), restart=restart)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The code that each process runs instead of a service; change it before the start."""
    codes = {"draft": WORKER, "verify": WORKER, "gateway": GATEWAY}

    def stand_ins(
        config: StackConfig, address: str, directory: Path, http_address: str | None
    ) -> list[Child]:
        return [
            Child(name, [sys.executable, "-c", code, address], dict(os.environ))
            for name, code in codes.items()
        ]

    monkeypatch.setattr(stack_module, "make_children", stand_ins)
    return codes


async def until_replaced(stack: Stack, name: str, old: int) -> int:
    while (new := stack.pids()[name]) == old:
        await asyncio.sleep(0.02)
    return new


@pytest.mark.asyncio
async def test_all_three_run_until_the_end(scripts: dict[str, str]) -> None:
    async with running_stack(config()) as stack:
        await stack.ready()
        pids = stack.pids()
        assert list(pids) == ["draft", "verify", "gateway"]
        assert all(running(pid) for pid in pids.values())
    assert not any(running(pid) for pid in pids.values())


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["draft", "verify", "gateway"])
async def test_a_death_before_ready_is_named(scripts: dict[str, str], name: str) -> None:
    scripts[name] = DYING
    if name != "gateway":
        scripts["gateway"] = WORKER
    with pytest.raises(StackError, match=rf"^{name} \(pid \d+\) ended with exit code 7 before"):
        async with running_stack(config()) as stack:
            await stack.ready()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["draft", "verify", "gateway"])
async def test_a_dead_process_is_replaced(scripts: dict[str, str], name: str) -> None:
    async with running_stack(config()) as stack:
        await stack.ready()
        others = {key: pid for key, pid in stack.pids().items() if key != name}
        old = stack.pids()[name]
        os.kill(old, signal.SIGKILL)
        new = await until_replaced(stack, name, old)
        await stack.ready()
        assert {key: stack.pids()[key] for key in others} == others
    assert not running(new)


@pytest.mark.asyncio
async def test_without_restart_a_dead_target_ends_the_stack(scripts: dict[str, str]) -> None:
    async with running_stack(config(restart=False)) as stack:
        await stack.ready()
        os.kill(stack.pids()["verify"], signal.SIGKILL)
        with pytest.raises(StackError, match=r"^verify \(pid \d+\) ended with signal 9$"):
            await stack.failure()


@pytest.mark.asyncio
async def test_without_restart_a_dead_drafter_is_missed_by_nobody(
    scripts: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with running_stack(config(restart=False)) as stack:
        await stack.ready()
        failure = asyncio.create_task(stack.failure())
        os.kill(stack.pids()["draft"], signal.SIGKILL)
        while "decoding goes on without drafts" not in caplog.text:
            await asyncio.sleep(0.02)
        await stack.ready()
        assert not failure.done()
        failure.cancel()


@pytest.mark.asyncio
async def test_a_port_in_use_is_named_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        occupied = StackConfig("127.0.0.1", port, Path("model"))
        with pytest.raises(StackError, match=f"cannot listen on 127.0.0.1:{port}: Address already"):
            async with running_stack(occupied):
                pass


def test_the_services_accept_the_flags_that_the_stack_gives_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from foredraft.cli.main import build_parser

    commands: dict[str, Sequence[str]] = {}
    monkeypatch.setattr(
        "foredraft.supervisor.commands.Child",
        lambda name, command, environment, address: commands.update({name: command}),
    )
    wanted = StackConfig(
        "0.0.0.0",
        1234,
        model=tmp_path,
        draft=tmp_path / "draft",
        speculation=Speculation.MODEL,
        dtype="float32",
        max_nodes=9,
        kv_memory_mib=77,
        draft_kv_memory_mib=33,
        suffix_store=555,
    )
    make_children(wanted, "0.0.0.0:1234", tmp_path, "0.0.0.0:1235")

    parsed = {name: build_parser().parse_args(c[3:]) for name, c in commands.items()}
    assert all(args.exit_with_parent and args.max_nodes == 9 for args in parsed.values())
    assert parsed["gateway"].grpc_listen == "0.0.0.0:1234"
    assert parsed["gateway"].http_listen == "0.0.0.0:1235"
    assert parsed["gateway"].speculation == "model"
    assert parsed["gateway"].verify == (parsed["verify"].listen,)
    assert parsed["gateway"].draft == (parsed["draft"].listen,)
    assert parsed["draft"].model == str(tmp_path / "draft")
    assert parsed["draft"].dtype == parsed["verify"].dtype == "float32"
    assert (parsed["verify"].kv_memory_mib, parsed["draft"].kv_memory_mib) == (77, 33)
    assert parsed["draft"].suffix_store == 555
    assert (parsed["verify"].threads, parsed["draft"].threads) == (usable_cores(), 1)

    make_children(replace(wanted, draft=None), "0.0.0.0:1234", tmp_path)
    assert build_parser().parse_args(commands["draft"][3:]).model == "none"

    for dtype in ("int8", "fp8"):
        make_children(replace(wanted, dtype=dtype), "0.0.0.0:1234", tmp_path)
        parsed = {name: build_parser().parse_args(c[3:]) for name, c in commands.items()}
        assert (parsed["verify"].dtype, parsed["draft"].dtype) == (dtype, "auto")
