"""A child ends when it is told to, when it hangs, and when its parent is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processes import running

from foredraft.supervisor.child import Child

POLITE = "import time; print(1, flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {POLITE}"
# A parent that starts a child with a pipe, says the child's pid, and waits to be killed.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
print(child.pid, flush=True)
time.sleep(600)
"""
ORPHAN = "from foredraft.supervisor.child import end_with_parent; end_with_parent(grace={grace}); "


def child(code: str, ready: Path | None = None) -> Child:
    if ready is not None:
        code = code.replace("print(1, flush=True)", f"open({str(ready)!r}, 'w').close()")
    return Child("test", [sys.executable, "-c", code], dict(os.environ))


async def until_exists(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_polite_child_ends_by_the_signal(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = child(POLITE, ready)
    await process.start()
    await until_exists(ready)
    await process.stop()
    assert await process.wait() == -signal.SIGTERM


@pytest.mark.asyncio
async def test_a_child_that_hangs_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = child(DEAF, ready)
    await process.start()
    await until_exists(ready)
    await process.stop(grace=0.2)
    assert await process.wait() == -signal.SIGKILL


@pytest.mark.asyncio
async def test_a_child_that_ended_is_not_signalled_again() -> None:
    process = child("raise SystemExit(3)")
    await process.start()
    assert await process.wait() == 3
    await process.stop()


@pytest.mark.asyncio
async def test_a_terminal_interrupt_does_not_reach_the_child(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = child(POLITE, ready)
    await process.start()
    await until_exists(ready)
    assert os.getpgid(process.pid) != os.getpgid(0)
    await process.stop()


@pytest.mark.parametrize("code", [POLITE, DEAF], ids=["polite", "deaf"])
def test_no_orphan_is_left_by_a_parent_that_was_killed(code: str) -> None:
    orphan = ORPHAN.format(grace=0.2) + code.replace("print(1, flush=True); ", "")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, orphan], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while running(pid):  # the test's own time limit ends a wait for an orphan
        time.sleep(0.02)
