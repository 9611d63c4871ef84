"""Lanes: whole messages, an end that both feel, and a sender that never waits."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from foredraft.wire.lane import Lane, LaneListener, find_lane

LONG = 100_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lane"


def meet(listener: LaneListener, path: Path) -> tuple[Lane, Lane]:
    here, there = find_lane(path), listener.accept()
    assert here is not None and there is not None
    return here, there


def test_messages_arrive_whole_and_in_order(path: Path) -> None:
    messages = [b"a", b"b" * LONG, b"c" * 7]
    with closing(LaneListener(path)) as listener:
        for one, other in (meet(listener, path), meet(listener, path)[::-1]):
            for message in messages:
                one.send(message)
                assert other.receive() == message


def test_both_peers_feel_the_end(path: Path) -> None:
    with closing(LaneListener(path)) as listener:
        here, there = meet(listener, path)
        here.send(b"last")
        here.end()
        assert there.receive() == b"last"
        assert there.receive() is None and here.receive() is None
        for lane in (here, there):
            lane.send(b"lost")
            lane.end()


def test_a_peer_that_does_not_read_ends_the_lane(path: Path) -> None:
    with closing(LaneListener(path)) as listener:
        here, there = meet(listener, path)
        for _ in range(100):
            here.send(b"x" * LONG)
        assert here.receive() is None
        received = 0
        while there.receive() is not None:
            received += 1
        assert 0 < received < 100


def test_nobody_is_found_where_nobody_listens(path: Path) -> None:
    assert find_lane(path) is None
    listener = LaneListener(path)
    waiting = threading.Thread(target=listener.accept)
    waiting.start()
    listener.close()
    waiting.join(10.0)
    assert not waiting.is_alive()
    assert find_lane(path) is None
    with closing(LaneListener(path)) as again:  # the old file is in nobody's way
        meet(again, path)


def test_what_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("a letter")
    with pytest.raises(OSError, match="in use"):
        LaneListener(path)
    assert path.read_text() == "a letter"
