"""What the drafter says on a stream, before it is encoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from draft_service.sequence import DraftSequence
from foredraft.wire.messages import DraftTimings, Nack, NodeBatch, NodeGroup


@dataclass(frozen=True, slots=True)
class Drafts:
    """New nodes for one stream, one batch per verify worker."""

    batches: dict[int, NodeBatch]
    timings: DraftTimings


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


def collect(due: Iterable[DraftSequence], timings: DraftTimings) -> list[Answer]:
    """One answer per stream with the new nodes of all sequences that are due."""
    streams: dict[int, dict[int, list[NodeGroup]]] = defaultdict(lambda: defaultdict(list))
    for sequence in due:
        workers = streams[sequence.key[0]]
        workers[sequence.opened.verify_worker].append(sequence.take_group())
    return [
        Answer(stream, Drafts({w: NodeBatch(tuple(some)) for w, some in workers.items()}, timings))
        for stream, workers in streams.items()
    ]
