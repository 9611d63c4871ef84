"""Who gets which blocks, and in which order they are taken back."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from foredraft.config import FakeEngine
from foredraft.engine.fake import FakeRunner
from foredraft.engine.kv import BlockPool
from foredraft.params import SamplingParams
from foredraft.wire.messages import Limits, ModelInfo, OpenSequence
from verify_service.reservations import Reservations
from verify_service.scheduler import Refused, Scheduler
from verify_service.sequence import VerifySequence

MODEL = ModelInfo("stand-in", "hash", vocab_size=128, context_length=512, eos_token_ids=(2,))


class Memory:
    """A scheduler over a pool, without a loop: sequences grow when a test says so."""

    def __init__(self, blocks: int) -> None:
        self.runner = FakeRunner(MODEL, FakeEngine(0.0))
        self.runner.kv = self.pool = BlockPool(blocks)
        self.reservations = Reservations(self.runner)
        self.scheduler = Scheduler(self.reservations, MODEL, Limits(64, 64, 32, blocks))

    def open(self, seq_id: int, prompt: Sequence[int], max_tokens: int) -> VerifySequence:
        params = SamplingParams(max_tokens=max_tokens)
        opened = OpenSequence(seq_id, 1, tuple(prompt), params)
        self.scheduler.open(0, opened)
        self.scheduler.admit()
        sequence = self.scheduler.find(0, seq_id, 1)
        assert sequence is not None
        return sequence

    def say(self, sequence: VerifySequence, tokens: int) -> None:
        sequence.advance((5,) * tokens)
        self.scheduler.make_room()

    def finish(self, sequence: VerifySequence) -> None:
        sequence.sound = True
        self.scheduler.finish(sequence)


def lies_in_one_piece(sequence: VerifySequence) -> bool:
    first = sequence.blocks[0]
    return sequence.blocks == list(range(first, first + len(sequence.blocks)))


def test_all_that_is_needed_in_one_piece_while_much_is_free() -> None:
    memory = Memory(200)
    sequences = [memory.open(number, [5] * 70, 200) for number in range(5)]
    assert [len(sequence.blocks) for sequence in sequences] == [20] * 5
    for sequence in sequences:
        memory.say(sequence, 199)
        assert len(sequence.blocks) == 20 and lies_in_one_piece(sequence)
    assert memory.pool.free_blocks == memory.reservations.free_blocks == 100


def test_what_is_asked_for_is_not_used_memory() -> None:
    """Ten sequences of five tiles each in ten tiles, as long as they need one each."""
    memory = Memory(40)
    sequences = [memory.open(number, [5] * 10, 300) for number in range(11)]
    assert [bool(sequence.blocks) for sequence in sequences] == [True] * 10 + [False]
    assert memory.reservations.free_blocks == 0
    assert all(lies_in_one_piece(sequence) for sequence in sequences[:10])


def test_half_of_the_longest_piece_is_left_for_growth() -> None:
    memory = Memory(40)
    first = memory.open(0, [5] * 10, 500)
    assert (first.blocks, memory.reservations.free_blocks) == (list(range(1, 21)), 36)
    memory.say(first, 400)
    assert first.blocks == list(range(1, 29))


def test_reserves_go_first_then_the_prefix_cache_then_the_newest() -> None:
    memory = Memory(40)
    for number in range(2):
        text = random.Random(number).choices(range(3, 128), k=70)
        memory.finish(memory.open(number, text, 10))
    first, second = (memory.open(number, [5] * 10, 300) for number in (2, 3))
    memory.say(first, 247)
    third = memory.open(4, [5] * 10, 300)
    held = []
    for grower in (third, third, third, second):
        memory.say(grower, 64)
        sizes = (len(sequence.blocks) for sequence in (first, second, third))
        held.append((*sizes, memory.reservations._prefixes.blocks))
    assert held == [(20, 4, 8, 8), (20, 4, 12, 4), (20, 4, 16, 0), (20, 8, 0, 0)]
    assert memory.scheduler.take_preempted() == 1


def test_guesses_leave_the_reserves_of_others() -> None:
    memory = Memory(24)
    first, second = (memory.open(number, [5] * 60, 120) for number in (0, 1))
    held = list(second.blocks)
    free = memory.pool.free_blocks
    entries = (len(first.blocks) + free) * 16
    assert memory.reservations.can_grow(first, entries)
    assert not memory.reservations.can_grow(first, entries + 1)
    memory.reservations.grow(first, entries)
    assert second.blocks == held and memory.pool.free_blocks == 0
    memory.say(second, 64 * 2)
    assert len(second.blocks) == 12 and len(first.blocks) == 12


def test_the_newest_makes_way_and_is_the_first_to_come_back() -> None:
    memory = Memory(16)
    first, second, third = (memory.open(number, [5] * 10, 240) for number in range(3))
    fourth = memory.open(3, [5] * 10, 5)
    assert all(sequence.blocks for sequence in (first, second, third, fourth))
    fifth = memory.open(4, [5] * 10, 5)
    memory.say(first, 64)
    assert not fourth.blocks
    memory.say(second, 64)
    assert not third.blocks and len(first.blocks) == len(second.blocks) == 8
    assert memory.scheduler.take_preempted() == 2
    memory.scheduler.admit()
    assert not third.blocks
    memory.finish(first)
    memory.scheduler.admit()
    assert third.blocks and fourth.blocks and not fifth.blocks
    assert memory.scheduler.take_preempted() == 0


def test_what_never_fits_alone_is_refused() -> None:
    memory = Memory(16)
    memory.open(0, [5] * 10, 246)
    with pytest.raises(Refused, match="max_tokens"):
        memory.open(1, [5] * 10, 247)


def test_steps_that_still_run_need_memory_and_leave_none_unseen() -> None:
    memory = Memory(48)
    scrubbed: list[int] = []
    memory.runner.scrub = scrubbed.extend  # type: ignore[method-assign]
    sequence = memory.open(0, [5] * 66, 300)
    memory.pool.free(sequence.blocks[8:])
    del sequence.blocks[8:]
    sequence.sound = True
    for ahead, blocks in ((62, 8), (63, 12), (10_000, 24)):  # it can have 366 tokens at most
        sequence.ahead = ahead
        memory.scheduler.make_room()
        assert len(sequence.blocks) == blocks
    taken = memory.pool.allocate(memory.pool.free_blocks)
    memory.pool.free(sequence.blocks[12:])
    own = sequence.blocks = sequence.blocks[:12]
    memory.pool.allocate(memory.pool.free_blocks)
    sequence.ahead = 62
    assert not memory.scheduler.is_short
    sequence.ahead = 127
    assert memory.scheduler.is_short
    memory.pool.free(taken)
    assert not memory.scheduler.is_short
    memory.scheduler.finish(sequence)
    assert scrubbed == own[4:]  # the others are a prompt's, and kept


def test_longest_run() -> None:
    pool = BlockPool(10)
    assert pool.longest_run == 10
    taken = pool.allocate(10)
    assert pool.longest_run == 0
    pool.free([taken[index] for index in (0, 2, 3, 4, 6, 9)])
    assert pool.longest_run == 3


def test_what_a_running_step_may_commit_is_not_promised_to_others() -> None:
    memory = Memory(10)
    first = memory.open(1, [5] * 32, 90)
    first.ahead = 33  # a root, and a path of 32 guesses
    memory.scheduler.make_room()
    memory.scheduler.open(0, OpenSequence(2, 1, (5,) * 20, SamplingParams(max_tokens=4)))
    memory.scheduler.admit()
    second = memory.scheduler.find(0, 2, 1)
    assert second is not None and not second.blocks
    first.ahead = 0
    memory.scheduler.admit()
    assert second.blocks
