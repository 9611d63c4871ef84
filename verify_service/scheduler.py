"""Who runs next: first come, first served admission, prompts in chunks, one step for all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import grpc

from foredraft.engine.kv import BLOCK
from foredraft.wire.errors import code_number
from foredraft.wire.messages import CloseSequence, Limits, ModelInfo, OpenSequence, SequenceError
from verify_service.reservations import Reservations
from verify_service.sequence import Key, VerifySequence


class Refused(Exception):
    """A sequence cannot be taken or followed; carries the in-stream error for it."""

    def __init__(self, seq_id: int, incarnation: int, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.error = SequenceError(seq_id, incarnation, code_number(code), text)


class Scheduler:
    """All sequences: waiting for memory, in prefill, or ready for a step.

    Both those that run and those that wait are in the order in which they came, and all that run
    came before all that wait: preemption takes the newest that runs and puts it first in line.
    """

    def __init__(self, reservations: Reservations, model: ModelInfo, limits: Limits) -> None:
        self.reservations = reservations
        self._model = model
        self._limits = limits
        self._waiting: deque[VerifySequence] = deque()
        self._running: dict[Key, VerifySequence] = {}
        self._preempted = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def __iter__(self) -> Iterator[VerifySequence]:
        yield from self._waiting
        yield from self._running.values()

    def open(self, stream: int, opened: OpenSequence) -> None:
        """Queue a sequence; an older incarnation of it ends.

        Raises:
            Refused: it can never run here.
        """
        sequence = VerifySequence.open(stream, opened, self._limits, self._model)
        refuse = _Refuser(opened.seq_id, opened.incarnation)
        vocab = self._model.vocab_size
        if not opened.prompt or max(sequence.tokens) >= vocab:
            raise refuse.invalid(f"prompt must be at least one token, ids from 0 to {vocab - 1}")
        if sequence.room < 1:
            length = self._model.context_length
            raise refuse.invalid(f"prompt must leave room in a context of {length} tokens")
        if not self.reservations.can_ever_admit(sequence):
            raise refuse(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"max_tokens must leave at most {self._limits.total_blocks * BLOCK} tokens",
            )
        self._drop(sequence.key)
        self._waiting.append(sequence)

    def find(self, stream: int, seq_id: int, incarnation: int) -> VerifySequence | None:
        """The live sequence of that name; None if it is closed or another incarnation."""
        key = (stream, seq_id)
        found = self._running.get(key) or next((s for s in self._waiting if s.key == key), None)
        return found if found is not None and found.opened.incarnation == incarnation else None

    def close(self, stream: int, close: CloseSequence) -> None:
        if self.find(stream, close.seq_id, close.incarnation) is not None:
            self._drop((stream, close.seq_id))

    def close_stream(self, stream: int) -> None:
        for sequence in [*self._waiting, *self._running.values()]:
            if sequence.stream == stream:
                self._drop(sequence.key)

    def finish(self, sequence: VerifySequence) -> None:
        self._drop(sequence.key)

    @property
    def is_short(self) -> bool:
        """True if there is not the memory that all running sequences need."""
        missing = sum(map(self.reservations.missing, self._running.values()))
        return missing > 0 and missing > self.reservations.free_blocks

    def make_room(self) -> None:
        """Give every running sequence the memory for its next token, the oldest first.

        Where it is short, the newest waits again; so the oldest, which fits alone, never does.
        """
        for sequence in list(self._running.values()):
            while sequence.key in self._running and not self.reservations.extend(sequence):
                self.preempt()

    def preempt(self) -> None:
        """Make the newest running sequence wait again, before all others, without any KV."""
        _, newest = self._running.popitem()
        self.reservations.release(newest)
        self._waiting.appendleft(newest)
        self._preempted += 1

    def take_preempted(self) -> int:
        """How often a sequence was preempted since this was asked before."""
        preempted, self._preempted = self._preempted, 0
        return preempted

    def admit(self) -> None:
        """Start waiting sequences, in order, while memory and slots last."""
        while (
            self._waiting
            and len(self._running) < self._limits.max_sequences
            and self.reservations.can_admit(self._waiting[0])
        ):
            sequence = self._waiting.popleft()
            self.reservations.admit(sequence)
            self._running[sequence.key] = sequence

    def next_prefill(self) -> VerifySequence | None:
        """The oldest sequence whose tokens are not in the KV yet."""
        return next((s for s in self._running.values() if not s.ready), None)

    def ready(self) -> list[VerifySequence]:
        return [sequence for sequence in self._running.values() if sequence.ready]

    def _drop(self, key: Key) -> None:
        sequence = self._running.pop(key, None)
        if sequence is not None:
            self.reservations.release(sequence)
        self._waiting = deque(s for s in self._waiting if s.key != key)


class _Refuser:
    """Makes refusals of one sequence."""

    def __init__(self, seq_id: int, incarnation: int) -> None:
        self._name = (seq_id, incarnation)

    def __call__(self, code: grpc.StatusCode, text: str) -> Refused:
        return Refused(*self._name, code, text)

    def invalid(self, text: str) -> Refused:
        return self(grpc.StatusCode.INVALID_ARGUMENT, text)
