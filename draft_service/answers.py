"""What the drafter says on a stream, before it is encoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from draft_service.sequence import DraftSequence
from foredraft.wire.messages import DraftTimings, GuessOutcomes, Nack, NodeBatch, NodeGroup


@dataclass(frozen=True, slots=True)
class Drafts:
    """New nodes for one stream, one batch per verify worker, and what became of older ones."""

    batches: dict[int, NodeBatch]
    timings: DraftTimings
    outcomes: tuple[GuessOutcomes, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Something to be sent on a stream."""

    stream: int
    content: Drafts | Nack


@dataclass(slots=True)
class WorkClock:
    """Seconds of work since the last answer."""

    suffix: float = 0.0
    model: float = 0.0
    passes: int = 0

    def timings(self) -> DraftTimings:
        return DraftTimings(round(self.suffix * 1e6), round(self.model * 1e6), self.passes)


def collect(
    due: Iterable[DraftSequence],
    timings: DraftTimings,
    outcomes: Callable[[int], tuple[GuessOutcomes, ...]],
) -> list[Answer]:
    """One answer per stream with the new nodes of all sequences that are due.

    ``outcomes``: what there is to be told to a stream of guesses that it got before.
    """
    streams: dict[int, dict[int, list[NodeGroup]]] = defaultdict(lambda: defaultdict(list))
    for sequence in due:
        workers = streams[sequence.key[0]]
        workers[sequence.opened.verify_worker].append(sequence.take_group())
    return [
        Answer(stream, Drafts(_batches(workers), timings, outcomes(stream)))
        for stream, workers in streams.items()
    ]


def _batches(groups: dict[int, list[NodeGroup]]) -> dict[int, NodeBatch]:
    return {worker: NodeBatch(tuple(some)) for worker, some in groups.items()}
