"""How one request was served: which targets had it, and when none was heard.

Of several choices it is the one that was heard last, for the request went on as long as that one.
"""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.telemetry import names
from foredraft.telemetry.records import Moment, SpanRecord


@dataclass(frozen=True, slots=True)
class Silence:
    """From the last step of a target that was lost to the next one's first, in nanoseconds."""

    start: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


@dataclass(frozen=True, slots=True)
class Killed:
    """A target that left no span of its own: what the gateway had heard of it, in seconds.

    ``wait`` is what none of its steps has told: its prompt, other requests, messages.
    """

    end: int
    steps: int
    verify: float
    held: float
    wait: float

    @property
    def seconds(self) -> float:
        return self.verify + self.held + self.wait

    @property
    def start(self) -> int:
        return self.end - round(self.seconds * 1e9)


@dataclass(frozen=True, slots=True)
class Service:
    """``opened`` and ``finished`` are the gateway's; ``sequences`` have the targets' clocks.

    whole: all that had the request are known, so that what is left of the time was the way.
    """

    opened: int
    finished: int
    sequences: tuple[SpanRecord, ...]
    killed: tuple[Killed, ...]
    silences: tuple[Silence, ...]
    whole: bool

    @property
    def seconds(self) -> float:
        return (self.finished - self.opened) / 1e9

    @property
    def steps(self) -> int:
        """How many there must be, as far as is known."""
        told = sum(span.number(names.STEPS) for span in self.sequences)
        return told + sum(part.steps for part in self.killed)

    @property
    def shift(self) -> int:
        """0 where the targets' clock agrees with the gateway's, else what centres it."""
        if not self.sequences:
            return 0
        start, end = self.sequences[0].start, self.sequences[-1].end
        if self.opened <= start and end <= self.finished:
            return 0
        return (self.opened + self.finished - start - end) // 2

    def told(self, microseconds: str) -> float:
        """Sum of an attribute of the targets' spans, in seconds."""
        return sum(span.number(microseconds) for span in self.sequences) / 1e6


def find_service(request: SpanRecord, sequences: list[SpanRecord]) -> Service:
    """``sequences`` are all that belong to the request."""
    chosen = _chosen(request, sequences)
    mine = sorted((s for s in sequences if _sequence(s) == chosen), key=lambda s: s.start)
    told = {span.attributes.get(names.INCARNATION) for span in mine}
    heard = [event for event in request.events if event.name == names.SILENCE]
    killed = [e for e in heard if e.attributes.get(names.HEARD_INCARNATION) not in told]
    opened = min(request.moments(names.OPENED), default=request.end)
    finished = max(request.moments(names.FINISHED), default=opened)
    return Service(
        opened,
        finished,
        tuple(mine),
        tuple(_killed(event) for event in killed),
        tuple(Silence(e.at, e.at + 1000 * e.number(names.SILENCE_US)) for e in heard),
        whole=bool(heard) or len(mine) == 1,
    )


def _chosen(request: SpanRecord, sequences: list[SpanRecord]) -> object:
    """The one that was heard last; where none was, the one that ended last."""
    heard = request.attributes.get(names.SEQUENCE)
    if heard or not sequences:
        return heard
    return _sequence(max(sequences, key=lambda span: span.end))


def _sequence(span: SpanRecord) -> object:
    return span.attributes.get(names.SEQUENCE, span.span_id)


def _killed(event: Moment) -> Killed:
    verify, held, wait = (
        event.number(name) / 1e6
        for name in (names.HEARD_VERIFY_US, names.HEARD_HELD_US, names.HEARD_WAIT_US)
    )
    return Killed(event.at, event.number(names.HEARD_STEPS), verify, held, wait)
