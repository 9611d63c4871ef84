"""What the draft worker tells of its work: a span per sequence, and one per round of drafting."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from draft_service.answers import Answer, Drafts
from foredraft.telemetry import names
from foredraft.telemetry.sequences import Key, TracedSequence, TracedSequences
from foredraft.telemetry.setup import Tracing
from foredraft.wire.codec.draft import Request
from foredraft.wire.messages import (
    CloseDrafts,
    DraftBudget,
    DraftTimings,
    Nack,
    NodeGroup,
    OpenSequences,
)

_SHARE = (names.LINK_NODES,)


@dataclass(slots=True)
class _Life(TracedSequence):
    nodes: int = 0
    rounds: int = 0


@dataclass(slots=True)
class _Share:
    """What one sequence got of the work that is being done."""

    life: _Life
    root_id: int
    nodes: int = 0


class DraftTrace:
    """Held by a loop only where tracing is on.

    Guesses for a root leave in several messages. Work is one span up to the message that completes
    the guesses of some root, or with which a sequence goes on to another root.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._batch = tracing.batch
        self._lives = TracedSequences(tracing.tracer, names.DRAFT_SEQUENCE, _Life)
        self._work = DraftTimings()
        self._shares: dict[Key, _Share] = {}  # since the span before
        self._told: dict[int, dict[str, int | float]] = {}  # by stream
        self._began = self._last = 0.0

    def received(self, stream: int, request: Request | None) -> None:
        """A message of a stream came; None: the stream has ended. Called in the event loop."""
        match request:
            case None:
                self._end(self._lives.of_stream(stream))
                self._told.pop(stream, None)
            case DraftBudget():
                self._told[stream] = _told(request)
            case OpenSequences(sequences):
                for opened in sequences:
                    self._end([(stream, opened.seq_id)])
                    self._lives.open(stream, opened)
            case CloseDrafts(sequences):
                self._end((stream, close.seq_id) for close in sequences)

    def drafted(self, answers: list[Answer]) -> None:
        """Work was done for all of ``answers`` together, which share its timings.

        A sequence that is refused, or that the drafter has lost track of, ends here.
        """
        for answer in answers:
            if isinstance(answer.content, Nack):
                self._end((answer.stream, error.seq_id) for error in answer.content.errors)
        drafts = [(a.stream, a.content) for a in answers if isinstance(a.content, Drafts)]
        if not drafts or not len(self._lives):
            return
        groups = [(stream, group) for stream, content in drafts for group in content.groups()]
        if any(self._moves_on(stream, group) for stream, group in groups):
            self._record()
        self._take(drafts[0][1].timings)
        for stream, group in groups:
            self._count(stream, group)
        if any(group.complete for _, group in groups):
            self._record()

    def _moves_on(self, stream: int, group: NodeGroup) -> bool:
        share = self._shares.get((stream, group.seq_id))
        return share is not None and share.root_id != group.root_id

    def _take(self, done: DraftTimings) -> None:
        self._last = time.perf_counter()
        if not self._shares:
            self._began = self._last - (done.suffix_us + done.model_us) / 1e6
        self._work += done

    def _count(self, stream: int, group: NodeGroup) -> None:
        key = stream, group.seq_id
        life = self._lives.find(key, group.incarnation)
        if life is not None:
            life.nodes += len(group.tokens)
            life.rounds += group.complete
            share = self._shares.setdefault(key, _Share(life, group.root_id))
            share.nodes += len(group.tokens)

    def _record(self) -> None:
        work, self._work = self._work, DraftTimings()
        if not self._shares:
            return
        first, _ = next(iter(self._shares))
        shares, self._shares = list(self._shares.values()), {}
        links = [share.life.link(_SHARE, (share.nodes,)) for share in shares]
        attributes = {
            names.SEQUENCES: len(shares),
            names.NODES: sum(share.nodes for share in shares),
            names.SUFFIX_US: work.suffix_us,
            names.MODEL_US: work.model_us,
            names.PASSES: work.model_passes,
            **self._told.get(first, {}),
        }
        now, now_ns = time.perf_counter(), time.time_ns()
        began_ns, ended_ns = (now_ns - round((now - at) * 1e9) for at in (self._began, self._last))
        self._batch.record(names.DRAFT_WORK, links, began_ns, ended_ns, attributes)

    def _end(self, keys: Iterable[Key]) -> None:
        for key in keys:
            life = self._lives.pop(key)
            if life is not None:
                life.span.set_attributes({names.NODES: life.nodes, names.ROUNDS: life.rounds})
                life.span.end()


def _told(budget: DraftBudget) -> dict[str, int | float]:
    return {
        names.MAX_NODES: budget.max_nodes_per_sequence,
        names.MAX_DEPTH: budget.max_depth,
        names.MIN_SURVIVAL: budget.min_survival,
        names.AHEAD_SURVIVAL: budget.ahead_survival,
    }
