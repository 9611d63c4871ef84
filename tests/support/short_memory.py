"""A verify worker with few KV blocks, and who lost them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from foredraft.engine.kv import BlockPool
from foredraft.engine.runner import ModelRunner
from support.verify_driver import VerifyDriver
from verify_service.scheduler import Scheduler
from verify_service.sequence import VerifySequence


@dataclass(frozen=True)
class Victim:
    """A sequence at the moment when it was preempted."""

    seq_id: int
    fed: int
    committed: int
    in_prefill: bool


class ShortMemory(VerifyDriver):
    """Notes who is preempted and who finishes, in this order. Counts of blocks stay sane."""

    def __init__(self, runner: ModelRunner, **limits: Any) -> None:
        super().__init__(runner, **limits)
        self.victims: list[Victim] = []
        self.finished: list[int] = []
        self._watch(self.scheduler, runner.kv)

    @property
    def running(self) -> list[VerifySequence]:
        """Oldest first."""
        return list(self.scheduler._running.values())

    @property
    def waiting(self) -> list[int]:
        return [sequence.opened.seq_id for sequence in self.scheduler._waiting]

    def turn(self) -> None:
        """One turn of the loop in this thread, answered by the drafter."""
        self.loop.serial()
        self.hear()

    def hear(self) -> None:
        """Take what the loop has to say."""
        self.loop.answers.tell()
        while not self._published.empty():
            self.step()

    def finish_here(self) -> None:
        """`finish` without a thread."""
        while not all(answer.done for answer in self.answers.values()):
            self.turn()

    def _watch(self, scheduler: Scheduler, pool: BlockPool) -> None:
        preempt, finish, release = (
            scheduler.preempt,
            scheduler.finish,
            scheduler.reservations.release,
        )

        def preempts() -> None:
            newest = self.running[-1]
            committed = len(newest.tokens) - len(newest.opened.prompt)
            self.victims.append(
                Victim(newest.opened.seq_id, newest.fed, committed, not newest.ready)
            )
            preempt()

        def finishes(sequence: VerifySequence) -> None:
            self.finished.append(sequence.opened.seq_id)
            finish(sequence)

        def releases(sequence: VerifySequence) -> None:
            release(sequence)
            held = [block for holder in self.running for block in holder.blocks]
            assert len(held) == len(set(held))
            assert 0 <= pool.free_blocks <= scheduler.reservations.free_blocks <= pool.total_blocks

        scheduler.preempt = preempts
        scheduler.finish = finishes
        scheduler.reservations.release = releases


@contextmanager
def blocks(runner: ModelRunner, count: int) -> Iterator[BlockPool]:
    """Give the model ``count`` KV blocks for a while; all must be free in the end."""
    ample, runner._memory.pool = runner.kv, BlockPool(count)
    yield runner.kv
    assert runner.kv.free_blocks == count
    runner._memory.pool = ample
