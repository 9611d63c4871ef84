"""The three processes as one thing: up when all are, restarted one by one, stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from foredraft.config import StackConfig
from foredraft.supervisor.address import (
    claim_port,
    join_address,
    local_address,
    wait_until_serving,
)
from foredraft.supervisor.child import Child
from foredraft.supervisor.commands import make_children
from foredraft.supervisor.restarts import RestartLimit
from foredraft.supervisor.watchdog import until_hung, until_stopped

logger = logging.getLogger(__name__)


class StackError(RuntimeError):
    """The stack cannot start or go on; the message says which process and how it ended."""


@contextlib.asynccontextmanager
async def running_stack(config: StackConfig) -> AsyncIterator[Stack]:
    """Start the processes (``ready`` waits for them) and stop them at the end, whatever happens."""
    grpc_port = _claim(config.grpc_host, config.grpc_port)
    http_port = None if config.http_port is None else _claim(config.grpc_host, config.http_port)
    if grpc_port == http_port:
        raise StackError(f"gRPC and HTTP cannot both listen on port {grpc_port}")
    with tempfile.TemporaryDirectory(prefix="foredraft-") as directory:
        stack = Stack(config, grpc_port, http_port, Path(directory))
        try:
            await stack.start()
            yield stack
        finally:
            await stack.stop()


def _claim(host: str, port: int) -> int:
    try:
        return claim_port(host, port)
    except OSError as error:
        wanted = join_address(host, port)
        raise StackError(f"cannot listen on {wanted}: {error.strerror}") from error


class Stack:
    """Made by ``running_stack``."""

    def __init__(
        self, config: StackConfig, grpc_port: int, http_port: int | None, directory: Path
    ) -> None:
        self.address = join_address(config.grpc_host, grpc_port)
        self.local_address = local_address(config.grpc_host, grpc_port)
        self.http_address: str | None = None
        if http_port is not None:
            self.http_address = join_address(config.grpc_host, http_port)
        self._restart = config.restart
        self._children = make_children(config, self.address, directory, self.http_address)
        self._ready = False
        self._watchers: list[asyncio.Task[None]] = []
        self._failed = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        for child in self._children:
            await child.start()
            self._watchers.append(asyncio.create_task(self._watch(child)))

    def pids(self) -> dict[str, int]:
        return {child.name: child.pid for child in self._children}

    def doors(self) -> dict[str, str]:
        """The addresses that clients use, by protocol."""
        http = {} if self.http_address is None else {"http": self.http_address}
        return {"grpc": self.address, **http}

    async def ready(self) -> None:
        """Wait until requests are answered.

        Raises:
            StackError: a process ended before that.
        """
        serving = asyncio.create_task(wait_until_serving(self.local_address))
        try:
            await asyncio.wait((serving, self._failed), return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                await self._failed
            serving.result()
            self._ready = True
        finally:
            serving.cancel()

    async def failure(self) -> None:
        """Never returns: raises StackError when the stack cannot go on."""
        await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """The gateway first: its open answers need the workers to end in order."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        *workers, gateway = self._children
        await gateway.stop()
        await asyncio.gather(*(worker.stop() for worker in workers))
        if not self._failed.cancel():
            self._failed.exception()  # seen: asyncio need not complain that nobody awaited it

    async def _watch(self, child: Child) -> None:
        limit = RestartLimit()
        while True:
            code = await self._life(child)
            death = f"{child.name} (pid {child.pid}) ended with {_describe_exit(code)}"
            if not self._ready:
                return self._fail(f"{death} before the stack was ready; its log is above")
            delay = limit.next_delay(time.monotonic()) if self._restart else None
            if delay is None:
                return self._give_up(child, death)
            logger.warning("%s; it is started again in %.1f s", death, delay)
            await asyncio.sleep(delay)
            await child.start()
            logger.warning("%s is back with pid %d", child.name, child.pid)

    async def _life(self, child: Child) -> int:
        """Wait for the end of a child, and end it when it hangs; its exit code."""
        guard = asyncio.create_task(self._end_if_hung(child))
        try:
            return await child.wait()
        finally:
            guard.cancel()

    async def _end_if_hung(self, child: Child) -> None:
        watches = [asyncio.create_task(until_stopped(child.pid))]
        if child.address is not None:
            must_serve = child.name != "gateway"
            watches.append(asyncio.create_task(until_hung(child.address, must_serve=must_serve)))
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
        reason = done.pop().result()
        logger.warning("%s (pid %d) %s: it is killed", child.name, child.pid, reason)
        child.kill()

    def _give_up(self, child: Child, death: str) -> None:
        if self._restart:
            death += " too often"
        if child.name == "draft":
            logger.warning("%s; decoding goes on without drafts", death)
        else:
            self._fail(death)

    def _fail(self, reason: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(StackError(reason))


def _describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
