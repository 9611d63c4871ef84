"""Finds a child that is there but does not answer: a stopped process, a deadlocked event loop.

A worker's model never runs on its event loop, so a long pass does not keep the health service
from answering. One that has never served is loading, for as long as it takes. Answers can be late
where cores are busy, so silence is given time; a process that is stopped says so itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from enum import Enum, auto
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from foredraft.wire.channel import public_channel

_PERIOD_SECONDS = 1.0
_ANSWER_SECONDS = 0.9
_MOST_MISSES = 2
_STALL_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_MOST_LOOKS = 3  # one that is stopped and goes on within a second is left alone
_STOPPED = "T"  # by a signal; a process under a debugger's hands is in another state


async def until_stopped(pid: int) -> str:
    """Return, and say why, when process ``pid`` is stopped and nobody lets it go on.

    Whether it has served does not matter: a process that loads is not stopped.
    """
    looks = 0
    while looks < _MOST_LOOKS:
        await asyncio.sleep(_LOOK_SECONDS)
        looks = looks + 1 if _state(pid) == _STOPPED else 0
    return "is stopped"


def _state(pid: int) -> str:
    """The letter that the system has for it; none of a process that is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        return stat.rpartition(")")[2].split()[0]
    return ""


async def until_hung(address: str, *, must_serve: bool) -> str:
    """Return, and say why, when the process at ``address`` is hung.

    ``must_serve``: it is hung, too, if it has served and says for long that it does not.
    """
    # The gentle kind of channel: a gateway ends a connection that pings it every second.
    async with public_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        patient = _Patience(must_serve)
        while True:
            reason = patient.lost(await _ask(stub), time.monotonic())
            if reason is not None:
                return reason
            await asyncio.sleep(_PERIOD_SECONDS)


class _Answer(Enum):
    """What came of a health check."""

    SERVING = auto()
    NOT_SERVING = auto()
    CLOSED = auto()  # it has stopped listening: it is about to end
    SILENT = auto()


class _Patience:
    """What the answers so far mean."""

    def __init__(self, must_serve: bool) -> None:
        self._stalling = {_Answer.CLOSED, *([_Answer.NOT_SERVING] if must_serve else [])}
        self._served_at: float | None = None  # the last time that it served
        self._misses = 0

    def lost(self, answer: _Answer, now: float) -> str | None:
        """Why nothing more is to be hoped for."""
        if answer is _Answer.SERVING:
            self._served_at = now
        if self._served_at is None:
            return None
        self._misses = self._misses + 1 if answer is _Answer.SILENT else 0
        if self._misses >= _MOST_MISSES:
            return f"did not answer {_MOST_MISSES} health checks"
        if answer in self._stalling and now - self._served_at > _STALL_SECONDS:
            return f"has not served for {_STALL_SECONDS:.0f} s"
        return None


async def _ask(stub: health_pb2_grpc.HealthStub) -> _Answer:
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_ANSWER_SECONDS)
    except grpc.aio.AioRpcError as error:
        silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return _Answer.SILENT if silent else _Answer.CLOSED
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return _Answer.SERVING if serving else _Answer.NOT_SERVING
