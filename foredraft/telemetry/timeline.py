"""Where the time of one request went.

How long things took is never read off two clocks: the gateway's time is on its own span, the
target's on its own, and the hop is what the gateway waited longer than the target worked. Clocks
of two processes only say where a bar is drawn, and not even that where they disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foredraft.telemetry import names
from foredraft.telemetry.records import SpanRecord

GATEWAY, HOP, PREFILL, HELD, VERIFY, OTHERS, IDLE = (
    "gateway",
    "hop",
    "prefill",
    "held",
    "verify",
    "others",
    "idle",
)
DRAFT = "draft"
# What the request's wall time is made of; drafting goes on beside it.
PARTS = (GATEWAY, HOP, PREFILL, HELD, VERIFY, OTHERS, IDLE)


@dataclass(frozen=True, slots=True)
class Bar:
    """From ``start`` to ``end``, in seconds since the request began."""

    start: float
    end: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """``seconds`` is the row's share of the request's time; its bars may show less."""

    name: str
    seconds: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """``missing``: steps of the request that are not in the file."""

    request: SpanRecord
    rows: tuple[Row, ...]
    missing: int

    @property
    def seconds(self) -> float:
        return self.request.seconds

    @property
    def unaccounted(self) -> float:
        """Seconds of the request that no row names."""
        return self.seconds - sum(row.seconds for row in self.rows if row.name in PARTS)


def build_timeline(request: SpanRecord, spans: Iterable[SpanRecord]) -> Timeline:
    """The timeline of one request out of the spans of its trace."""
    mine = [span for span in spans if _belongs(span, request)]
    sequences = _last_chain([span for span in mine if span.name == names.VERIFY_SEQUENCE])
    steps = sorted((s for s in mine if s.name == names.VERIFY_STEP), key=lambda s: s.start)
    expected = sum(int(span.attributes.get(names.STEPS, 0)) for span in sequences)
    missing = max(0, expected - len(steps))
    seconds = _seconds(request, sequences)
    bars = _Bars(request, sequences, steps)
    work = [span for span in mine if span.name == names.DRAFT_WORK]
    drawn = {
        GATEWAY: bars.gateway(),
        HOP: bars.hop(),
        PREFILL: bars.prefill(),
        HELD: bars.held(),
        VERIFY: bars.verify(),
        IDLE: () if missing else bars.gaps(),
    }
    rows = [Row(name, seconds[name], drawn.get(name, ())) for name in PARTS]
    drafted = (names.SUFFIX_US, names.MODEL_US)
    spent = sum(span.attributes.get(name, 0) for span in work for name in drafted) / 1e6
    return Timeline(request, (Row(DRAFT, spent, bars.draft(work)), *rows), missing)


def _belongs(span: SpanRecord, request: SpanRecord) -> bool:
    return span.parent_id == request.span_id or span.link_to(request.span_id) is not None


def _last_chain(sequences: list[SpanRecord]) -> list[SpanRecord]:
    """Of sequences side by side (several choices) the one that ended last, and what it resumed."""
    chain: list[SpanRecord] = []
    for sequence in sorted(sequences, key=lambda s: s.end, reverse=True):
        if not chain or sequence.end <= chain[-1].start:
            chain.append(sequence)
    return chain[::-1]


def _served(request: SpanRecord) -> tuple[int, int]:
    """From when to when the request was at the target, by the gateway's clock."""
    opened = min(request.moments(names.OPENED), default=request.end)
    return opened, max(request.moments(names.FINISHED), default=opened)


def _seconds(request: SpanRecord, sequences: list[SpanRecord]) -> dict[str, float]:
    opened, finished = _served(request)
    at_target = sum(span.seconds for span in sequences)
    seconds = dict.fromkeys(PARTS, 0.0)
    seconds[GATEWAY] = (opened - request.start + request.end - finished) / 1e9
    if len(sequences) == 1:  # between two of them the target was lost: that is no hop
        seconds[HOP] = max(0.0, (finished - opened) / 1e9 - at_target)
    for name, attribute in _MEASURED.items():
        seconds[name] = sum(span.attributes.get(attribute, 0) for span in sequences) / 1e6
    seconds[IDLE] = max(0.0, at_target - sum(seconds[name] for name in _MEASURED))
    return seconds


_MEASURED = {
    PREFILL: names.PREFILL_US,
    HELD: names.HELD_US,
    VERIFY: names.VERIFY_US,
    OTHERS: names.OTHERS_US,
}


class _Bars:
    """Places spans on the request's own time."""

    def __init__(
        self, request: SpanRecord, sequences: list[SpanRecord], steps: list[SpanRecord]
    ) -> None:
        self._request = request
        self._steps = steps
        self._opened, self._finished = _served(request)
        self._sequences = sequences
        self._shift = _shift(self._opened, self._finished, sequences)

    def gateway(self) -> tuple[Bar, ...]:
        request = self._request
        return self._bars([(request.start, self._opened), (self._finished, request.end)])

    def hop(self) -> tuple[Bar, ...]:
        if len(self._sequences) != 1:
            return ()
        start, end = (at + self._shift for at in (self._sequences[0].start, self._sequences[0].end))
        return self._bars([(self._opened, start), (end, self._finished)])

    def prefill(self) -> tuple[Bar, ...]:
        return self._bars(self._prefill(), shift=self._shift)

    def held(self) -> tuple[Bar, ...]:
        spans = [(step.start, step.start + _held(step)) for step in self._steps if _held(step)]
        return self._bars(spans, shift=self._shift)

    def verify(self) -> tuple[Bar, ...]:
        return tuple(
            self._bar(step.start + _held(step), step.end, self._shift, self._describe(step))
            for step in self._steps
        )

    def gaps(self) -> tuple[Bar, ...]:
        """What neither the prompt nor a step fills: the target did something else, or nothing."""
        busy = self._prefill() + [(step.start, step.end) for step in self._steps]
        gaps = []
        for sequence in self._sequences:
            at = sequence.start
            for start, end in sorted(busy):
                if sequence.start <= start < sequence.end:
                    gaps.append((at, start))
                    at = max(at, end)
            gaps.append((at, sequence.end))
        return self._bars(gaps, shift=self._shift)

    def draft(self, work: list[SpanRecord]) -> tuple[Bar, ...]:
        return tuple(
            self._bar(span.start, span.end, 0, f"{_linked(span, self._request)} guesses")
            for span in work
        )

    def _prefill(self) -> list[tuple[int, int]]:
        return [
            (at - 1000 * int(span.attributes.get(names.PREFILL_US, 0)), at)
            for span in self._sequences
            for at in span.moments(names.PREFILLED)
        ]

    def _describe(self, step: SpanRecord) -> str:
        link = step.link_to(self._request.span_id)
        share = link.attributes if link is not None else {}
        numbers = step.attributes
        return (
            f"step {numbers.get(names.STEP_INDEX)}: {share.get(names.LINK_TOKENS)} tokens, "
            f"{share.get(names.LINK_ACCEPTED)} of {share.get(names.LINK_NODES)} guesses right; "
            f"{numbers.get(names.SEQUENCES)} sequences, {numbers.get(names.ROWS)} rows"
        )

    def _bars(self, spans: Iterable[tuple[int, int]], shift: int = 0) -> tuple[Bar, ...]:
        return tuple(self._bar(start, end, shift) for start, end in spans if end > start)

    def _bar(self, start: int, end: int, shift: int, text: str = "") -> Bar:
        origin = self._request.start - shift
        return Bar((start - origin) / 1e9, (end - origin) / 1e9, text)


def _shift(opened: int, finished: int, sequences: list[SpanRecord]) -> int:
    """0 where the target's clock agrees with the gateway's, else what centres it."""
    if not sequences:
        return 0
    start, end = sequences[0].start, sequences[-1].end
    if opened <= start and end <= finished:
        return 0
    return (opened + finished - start - end) // 2


def _held(step: SpanRecord) -> int:
    return 1000 * int(step.attributes.get(names.HELD_US, 0))


def _linked(span: SpanRecord, request: SpanRecord) -> int:
    link = span.link_to(request.span_id)
    return int(link.attributes.get(names.LINK_NODES, 0)) if link is not None else 0
