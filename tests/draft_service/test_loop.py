"""The engine thread: takes in what piled up, survives faults, ends when told."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from draft_service.answers import Answer
from draft_service.loop import DraftLoop, StreamEnded
from foredraft.wire.messages import Commit, Commits, Nack
from foredraft.wire.outbox import MAX_WAITING

SECONDS = 10.0


class FakeDrafter:
    """Records what it is given; one piece of work waits for ``gate``."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.busy = False
        self.gate = threading.Event()
        self.started = threading.Event()
        self.fail = False

    def handle(self, stream, request):
        self.log.append((stream, request))
        self.busy = True
        return [Answer(stream, Nack(()))] if request == "refuse" else []

    def follow(self, lane, commits):
        self.log.append((lane, commits))

    def end_lane(self, lane):
        self.log.append((lane, "ended"))

    def end_stream(self, stream):
        self.log.append((stream, "end"))
        self.busy = False

    def draft(self):
        if not self.busy:
            return []
        self.log.append("draft")
        self.started.set()
        assert self.gate.wait(SECONDS)
        self.busy = False
        if self.fail:
            raise RuntimeError("broken")
        return [Answer(1, Nack(()))]


def start():
    drafter, answers, failures = FakeDrafter(), SimpleQueue(), SimpleQueue()
    loop = DraftLoop(drafter, answers.put, failures.put)
    loop.start()
    return drafter, loop, answers, failures


def commit(position: int) -> Commits:
    return Commits((Commit(1, 0, position, (1,)),))


def test_waiting_messages_are_all_taken_in_before_the_next_piece_of_work() -> None:
    drafter, loop, answers, _ = start()
    loop.post(1, commit(0))
    assert drafter.started.wait(SECONDS)
    for position in (1, 2, 3):
        loop.post(1, commit(position))
    drafter.gate.set()
    answers.get(timeout=SECONDS)
    answers.get(timeout=SECONDS)
    loop.stop()
    seen = [entry if entry == "draft" else entry[1].commits[0].position for entry in drafter.log]
    assert seen == [0, "draft", 1, 2, 3, "draft"]


def test_refusals_go_out_before_any_work() -> None:
    drafter, loop, answers, _ = start()
    loop.post(1, "refuse")
    answers.get(timeout=SECONDS)
    drafter.gate.set()
    loop.stop()


def test_a_fault_ends_the_streams_and_the_thread_goes_on() -> None:
    drafter, loop, answers, failures = start()
    drafter.fail = True
    drafter.gate.set()
    loop.post(1, commit(0))
    assert failures.get(timeout=SECONDS) == {1}
    assert drafter.log[-1] == (1, "end")
    drafter.fail = False
    loop.post(2, commit(5))
    answers.get(timeout=SECONDS)
    loop.post(2, StreamEnded())
    loop.stop()
    assert drafter.log[-1] == (2, "end")


def test_the_pulse_shows_a_piece_of_work_that_hangs(monkeypatch) -> None:
    monkeypatch.setattr("foredraft.wire.pulse._SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr("draft_service.loop._PASS_MS", 0.0)
    drafter, loop, answers, _ = start()
    assert not loop.pulse.overdue
    loop.post(1, commit(0))
    assert drafter.started.wait(SECONDS)
    assert loop.pulse.overdue
    drafter.gate.set()
    answers.get(timeout=SECONDS)
    assert not loop.pulse.overdue
    loop.stop()


def test_what_lanes_bring_does_not_pile_up_before_an_engine_that_stands_still() -> None:
    drafter, loop, answers, _ = start()
    loop.post(1, commit(0))
    assert drafter.started.wait(SECONDS)
    for position in range(2 * MAX_WAITING):
        loop.post_lane(7, commit(position))
    loop.post_lane(7, None)
    assert loop.waiting() == MAX_WAITING + 1
    drafter.gate.set()
    answers.get(timeout=SECONDS)
    loop.stop()
    by_lane = [entry for entry in drafter.log if entry[0] == 7]
    assert len(by_lane) == MAX_WAITING + 1 and by_lane[-1] == (7, "ended")
