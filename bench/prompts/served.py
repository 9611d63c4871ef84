"""Sequences in a step loop of their own, and when each of their tokens was told."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from foredraft.engine.fp8.runner import Fp8Runner
from foredraft.params import SamplingParams
from foredraft.wire.codec.verify import Response
from foredraft.wire.messages import Limits, OpenSequence, OpenSequences, SequenceErrors, StepResult
from verify_service.choose_steps import choose_steps
from verify_service.reservations import Reservations
from verify_service.scheduler import Scheduler
from verify_service.step_loop import Arrival, StepLoop

_STREAM = 0
_SECONDS = 120.0  # until a sequence has to be done


@dataclass(slots=True)
class Told:
    """Of one sequence: tokens, and when the first and the last of them came, by `perf_counter`."""

    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    done: bool = False


@dataclass(slots=True)
class Heard:
    """What a step loop has published of one round.

    steps: when the results of each were told.
    """

    opened: float
    sequences: list[Told]
    steps: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """Milliseconds; gaps are those between steps once every sequence has its first token."""
        firsts = sorted(1000 * (told.first - self.opened) for told in self.sequences)
        all_there = max(told.first for told in self.sequences)
        end = min(told.last for told in self.sequences)
        times = [at for at in self.steps if all_there <= at <= end]
        gaps = [1000 * (after - at) for at, after in pairwise(times)]
        return {
            "first_token_ms": [round(first, 2) for first in firsts],
            "tokens": [told.tokens for told in self.sequences],
            "step_ms": round(statistics.median(gaps), 4) if gaps else None,
            "longest_gap_ms": round(max(gaps), 4) if gaps else None,
            "longest_gap_steps": round(max(gaps) / statistics.median(gaps), 3) if gaps else None,
        }


class ServedPrompts:
    """A step loop in a thread, which serves one round of sequences after another."""

    def __init__(self, runner: Fp8Runner, sequences: int) -> None:
        limits = Limits(sequences, max_nodes=2, max_depth=1, total_blocks=runner.kv.total_blocks)
        memory = Reservations(runner)
        steps = choose_steps(runner, memory, limits)
        cost = steps.warm()
        scheduler = Scheduler(memory, runner.info, limits)
        self._loop = StepLoop(runner, scheduler, cost, self._hear, steps=steps)
        self._vocabulary = runner.info.vocab_size
        self._random = random.Random(0)
        self._opened = 0
        self._heard: Heard | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop.run, daemon=True)
        self._thread.start()

    def start(self, sequences: int, prompt: int, tokens: int) -> Heard:
        """Open sequences with random prompts of so many ids; more is heard as they run."""
        opened = [self._open(prompt, tokens) for _ in range(sequences)]
        heard = Heard(time.perf_counter(), [Told() for _ in opened])
        self._first, self._heard = opened[0].seq_id, heard
        self._loop.inbox.put(Arrival(_STREAM, OpenSequences(tuple(opened))))
        return heard

    def wait(self, heard: Heard, *, first: bool = False) -> None:
        """Until all sequences are done, or have their first tokens.

        Raises:
            RuntimeError: one was refused, or takes too long.
        """
        with self._changed:
            there = self._changed.wait_for(
                lambda: heard.faults or all(t.tokens if first else t.done for t in heard.sequences),
                timeout=_SECONDS,
            )
        if heard.faults or not there:
            raise RuntimeError("; ".join(heard.faults) or f"not done within {_SECONDS:.0f} s")

    def stop(self) -> None:
        self._loop.stop()
        self._thread.join()

    def _open(self, prompt: int, tokens: int) -> OpenSequence:
        self._opened += 1
        return OpenSequence(
            seq_id=self._opened,
            incarnation=1,
            prompt=tuple(self._random.randrange(self._vocabulary) for _ in range(prompt)),
            params=SamplingParams(max_tokens=tokens, ignore_eos=True),
        )

    def _hear(self, stream: int, response: Response) -> None:
        """Called by the loop's thread."""
        now, heard = time.perf_counter(), self._heard
        if heard is None:
            return
        with self._changed:
            match response:
                case SequenceErrors(errors):
                    heard.faults += [error.message for error in errors]
                case StepResult():
                    heard.steps.append(now)
                    for commit in response.commits:
                        told = heard.sequences[commit.seq_id - self._first]
                        told.first = told.first or now
                        told.last = now
                        told.tokens += len(commit.tokens)
                        told.done = commit.finish is not None
            self._changed.notify_all()


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The round whose last first token came neither early nor late."""
    ordered = sorted(rounds, key=lambda one: one["first_token_ms"][-1])
    return ordered[len(ordered) // 2]
