"""Health follows an engine thread: a pass that hangs is no service, and then it is one again."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.fakes import until

from foredraft.wire import pulse as module
from foredraft.wire.pulse import Pulse, serve_while_it_moves


class Told:
    """In the place of the health service: what it was told."""

    def __init__(self) -> None:
        self.serving: list[bool] = []

    async def set_serving(self, serving: bool) -> None:
        self.serving.append(serving)


def test_a_pass_may_take_long_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    pulse = Pulse()
    assert not pulse.overdue
    with pulse.expecting(20.0):
        now += 3.9  # a healthy one on busy cores
        assert not pulse.overdue
        now += 0.2
        assert pulse.overdue
    assert not pulse.overdue
    with pulse.expecting(1000.0):
        now += 7.9
        assert not pulse.overdue
        now += 0.2
        assert pulse.overdue


@pytest.mark.asyncio
async def test_health_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORTEST_SECONDS", 0.05)
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.01)
    pulse, told = Pulse(), Told()
    watching = asyncio.create_task(serve_while_it_moves(pulse, told))
    await until(lambda: told.serving == [True])
    with pulse.expecting(0.0):
        await until(lambda: told.serving == [True, False])
    await until(lambda: told.serving == [True, False, True])
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
