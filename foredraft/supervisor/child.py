"""One child process, and the two promises about its end.

A child that is asked to stop and does not is killed, and a child whose parent is gone, however it
went, ends by itself: its standard input is a pipe that the parent never writes to, so that the
end of that pipe is the end of the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence

GRACE_SECONDS = 8.0  # more than a service gives its open streams
_STDIN, _STDERR = 0, 2


class Child:
    """A process that can be started again after it ended.

    address: where it answers health checks; None: it does not.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        address: str | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self._command = command
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    async def start(self) -> None:
        """Start in a session of its own: a terminal's Ctrl-C reaches only the supervisor."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=_STDERR,
            start_new_session=True,
        )

    async def wait(self) -> int:
        """The exit code; negative is the number of the signal that ended it."""
        return await self._running().wait()

    def kill(self) -> None:
        """End it at once: a process that hangs does not hear anything else."""
        with contextlib.suppress(ProcessLookupError):
            self._running().kill()

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Ask it to end, and end it if it has not after ``grace`` seconds."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError(f"{self.name} has not been started")
        return self._process


def end_with_parent(grace: float = GRACE_SECONDS) -> None:
    """Called by a child: end in order when the parent is gone, and by force after ``grace``."""
    threading.Thread(
        target=_wait_for_parent, args=(grace,), name="end-with-parent", daemon=True
    ).start()


def _wait_for_parent(grace: float) -> None:
    # Not sys.stdin: a daemon thread that holds its lock would break the interpreter's own end.
    while os.read(_STDIN, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os._exit(1)
