"""What the drafter says on a stream, before it is encoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from draft_service.sequence import DraftSequence
from foredraft.wire.messages import DraftTimings, GuessOutcomes, Nack, NodeBatch, NodeGroup


@dataclass(frozen=True, slots=True)
class Drafts:
    """New nodes for sequences of one stream, and what became of older ones.

    batches: by verify worker, for the gateway to relay. by_lane: by lane.
    """

    batches: dict[int, NodeBatch]
    timings: DraftTimings
    outcomes: tuple[GuessOutcomes, ...] = ()
    by_lane: dict[int, NodeBatch] = field(default_factory=dict)

    def groups(self) -> Iterator[NodeGroup]:
        """All nodes, whichever way they go."""
        for batch in (*self.batches.values(), *self.by_lane.values()):
            yield from batch.groups


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


@dataclass(slots=True)
class _Groups:
    """Of one stream: by verify worker, and by lane."""

    relayed: defaultdict[int, list[NodeGroup]] = field(default_factory=lambda: defaultdict(list))
    by_lane: defaultdict[int, list[NodeGroup]] = field(default_factory=lambda: defaultdict(list))


def collect(
    due: Iterable[DraftSequence],
    timings: DraftTimings,
    outcomes: Callable[[int], tuple[GuessOutcomes, ...]],
) -> list[Answer]:
    """One answer per stream with the new nodes of all sequences that are due.

    ``outcomes``: what there is to be told to a stream of guesses that it got before.
    """
    streams: defaultdict[int, _Groups] = defaultdict(_Groups)
    for sequence in due:
        groups, lane = streams[sequence.key[0]], sequence.lane
        if lane is None:
            groups.relayed[sequence.opened.verify_worker].append(sequence.take_group())
        else:
            groups.by_lane[lane].append(sequence.take_group())
    return [
        Answer(
            stream,
            Drafts(_batches(groups.relayed), timings, outcomes(stream), _batches(groups.by_lane)),
        )
        for stream, groups in streams.items()
    ]


def _batches(groups: Mapping[int, list[NodeGroup]]) -> dict[int, NodeBatch]:
    return {way: NodeBatch(tuple(some)) for way, some in groups.items()}
