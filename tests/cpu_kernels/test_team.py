"""Parts are done once each, whoever comes; nobody is left behind."""

from __future__ import annotations

import gc
import threading
from functools import cache

import numpy as np
import pytest
from llvmlite import ir

from kernels.cpu.compiled import Compiled
from kernels.cpu.emitter import I64, Emitter
from kernels.cpu.job import Job
from kernels.cpu.team import PART_KINDS, Team, emit_parts

FIELDS = ("counts", "by", "parts", "team")


@cache
def counting() -> Compiled:
    """``count``: adds one to the number of each part, and says which thread did it."""
    module = ir.Module("counting")
    emit = Emitter(module, "work", FIELDS, PART_KINDS)
    _, part, thread = emit.arguments
    counts = emit.address("counts")
    emit.store(emit.add(emit.load(I64, counts, part), 1), counts, part)
    emit.store(thread, emit.address("by"), part)
    work = emit.finish()
    entry = Emitter(module, "count", FIELDS)
    emit_parts(entry, work, entry.number("parts"))
    entry.finish()
    return Compiled(module)


def count(team: Team, parts: int, times: int) -> tuple[np.ndarray, set[int]]:
    """How often each part was done, and by which threads."""
    counts, by = np.zeros(max(parts, 1), np.int64), np.zeros(max(parts, 1), np.int64)
    job = Job(FIELDS, counts=counts.ctypes.data, by=by.ctypes.data, parts=parts, team=team.address)
    seen: set[int] = set()
    for _ in range(times):
        job.run(counting()["count"])
        seen.update(by.tolist())
    return counts, seen


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_part_is_done_once(threads: int) -> None:
    team = Team(threads)
    for parts in (0, 1, 2, 16, 1000):
        counts, seen = count(team, parts, times=50)
        assert counts[:parts].tolist() == [50] * parts
        assert seen <= set(range(threads))


def test_teams_of_several_callers_do_not_mix() -> None:
    results: list[list[int]] = []

    def call() -> None:
        counts, _ = count(Team(3), 40, times=300)
        results.append(counts.tolist())

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [[300] * 40] * 4


def test_helpers_end_with_their_team() -> None:
    before = threading.active_count()
    team = Team(4)
    assert threading.active_count() == before + 3
    count(team, 10, times=3)
    del team
    gc.collect()
    assert threading.active_count() == before


def test_where_a_helper_cannot_be_started_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    before, start = threading.active_count(), threading.Thread.start

    def start_three(thread: threading.Thread) -> None:
        if threading.active_count() == before + 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_three)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Team(6)
    gc.collect()
    assert threading.active_count() == before
