from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from foredraft.engine.capture import captured


def test_nothing_is_collected_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is destroyed meanwhile would end the capture."""
    modes = []

    @contextmanager
    def graph(_: object, pool: object, capture_error_mode: str) -> Iterator[None]:
        modes.append((pool, capture_error_mode, gc.isenabled()))
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    with captured("pool"):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(RuntimeError), captured():
        raise RuntimeError
    assert gc.isenabled()
    assert modes == [("pool", "thread_local", False), (None, "thread_local", False)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures on a GPU")
def test_a_graph_in_a_cycle_does_not_end_the_capture_of_another() -> None:
    x = torch.zeros(4, device="cuda")
    with captured() as first:
        x += 1
    cycle: list[object] = [first]
    cycle.append(cycle)
    del first, cycle
    held = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with captured() as second:
            x += 2
            garbage = [[] for _ in range(100)]  # what would begin a collection
    finally:
        gc.set_threshold(*held)
    second.replay()
    assert len(garbage) == 100
    assert x.tolist() == [2.0] * 4
