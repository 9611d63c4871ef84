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
from foredraft.telemetry.service import Service, find_service

GATEWAY, HOP, PREFILL, HELD, VERIFY, OTHERS, IDLE, LOST, UNTOLD = (
    "gateway",
    "hop",
    "prefill",
    "held",
    "verify",
    "others",
    "idle",
    "lost",
    "untold",
)
DRAFT = "draft"
# What the request's wall time is made of; drafting goes on beside it.
PARTS = (GATEWAY, HOP, PREFILL, HELD, VERIFY, OTHERS, IDLE, LOST, UNTOLD)
# What only a request has whose target was lost.
_RARE = (LOST, UNTOLD)


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
    steps = sorted((s for s in mine if s.name == names.VERIFY_STEP), key=lambda s: s.start)
    service = find_service(request, [s for s in mine if s.name == names.VERIFY_SEQUENCE])
    missing = max(0, service.steps - len(steps))
    seconds = _seconds(request, service)
    bars = _Bars(request, service, steps)
    work = [span for span in mine if span.name == names.DRAFT_WORK]
    drawn = {
        GATEWAY: bars.gateway(),
        HOP: bars.hop(),
        PREFILL: bars.prefill(),
        HELD: bars.held(),
        VERIFY: bars.verify(),
        IDLE: () if missing else bars.idle(),
        LOST: bars.lost(),
        UNTOLD: bars.untold(),
    }
    rows = [
        Row(name, seconds[name], drawn.get(name, ()))
        for name in PARTS
        if seconds[name] or name not in _RARE
    ]
    drafted = (names.SUFFIX_US, names.MODEL_US)
    spent = sum(span.number(name) for span in work for name in drafted) / 1e6
    return Timeline(request, (Row(DRAFT, spent, bars.draft(work)), *rows), missing)


def _belongs(span: SpanRecord, request: SpanRecord) -> bool:
    return span.parent_id == request.span_id or span.link_to(request.span_id) is not None


def _seconds(request: SpanRecord, service: Service) -> dict[str, float]:
    seconds = dict.fromkeys(PARTS, 0.0)
    seconds[GATEWAY] = request.seconds - service.seconds
    for name, attribute in _MEASURED.items():
        seconds[name] = service.told(attribute)
    at_target = sum(span.seconds for span in service.sequences)
    seconds[IDLE] = max(0.0, at_target - sum(seconds[name] for name in _MEASURED))
    for killed in service.killed:
        seconds[VERIFY] += killed.verify
        seconds[HELD] += killed.held
        seconds[UNTOLD] += killed.wait
        at_target += killed.seconds
    rest = max(0.0, service.seconds - at_target)
    seconds[LOST] = min(rest, sum(silence.seconds for silence in service.silences))
    if service.whole:
        seconds[HOP] = rest - seconds[LOST]
    return seconds


_MEASURED = {
    PREFILL: names.PREFILL_US,
    HELD: names.HELD_US,
    VERIFY: names.VERIFY_US,
    OTHERS: names.OTHERS_US,
}


class _Bars:
    """Places spans on the request's own time."""

    def __init__(self, request: SpanRecord, service: Service, steps: list[SpanRecord]) -> None:
        self._request = request
        self._steps = steps
        self._service = service
        self._shift = service.shift
        self._worked = [(step.start + self._shift, step.end + self._shift) for step in steps]

    def gateway(self) -> tuple[Bar, ...]:
        request, service = self._request, self._service
        return self._bars([(request.start, service.opened), (service.finished, request.end)])

    def hop(self) -> tuple[Bar, ...]:
        service = self._service
        if not service.whole or service.silences:
            return ()
        at_target = [(s.start + self._shift, s.end + self._shift) for s in service.sequences]
        return self._bars(_gaps(service.opened, service.finished, at_target))

    def lost(self) -> tuple[Bar, ...]:
        """Silences, but for what targets tell of the time in which they were not heard."""
        at_target = [(s.start + self._shift, s.end + self._shift) for s in self._service.sequences]
        silences = self._service.silences
        gaps = [gap for s in silences for gap in _gaps(s.start, s.end, at_target)]
        return self._bars(gaps)

    def untold(self) -> tuple[Bar, ...]:
        killed = self._service.killed
        gaps = [gap for part in killed for gap in _gaps(part.start, part.end, self._worked)]
        return self._bars(gaps)

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

    def idle(self) -> tuple[Bar, ...]:
        """What neither the prompt nor a step fills: the target did something else, or nothing."""
        busy = self._prefill() + [(step.start, step.end) for step in self._steps]
        sequences = self._service.sequences
        gaps = [gap for s in sequences for gap in _gaps(s.start, s.end, busy)]
        return self._bars(gaps, shift=self._shift)

    def draft(self, work: list[SpanRecord]) -> tuple[Bar, ...]:
        return tuple(
            self._bar(span.start, span.end, 0, f"{_linked(span, self._request)} guesses")
            for span in work
        )

    def _prefill(self) -> list[tuple[int, int]]:
        return [
            (at - 1000 * span.number(names.PREFILL_US), at)
            for span in self._service.sequences
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


def _gaps(start: int, end: int, busy: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of a time is not busy."""
    gaps, at = [], start
    for began, ended in sorted(busy):
        if began < end and ended > at:
            gaps.append((at, began))
            at = ended
    gaps.append((at, end))
    return gaps


def _held(step: SpanRecord) -> int:
    return 1000 * step.number(names.HELD_US)


def _linked(span: SpanRecord, request: SpanRecord) -> int:
    link = span.link_to(request.span_id)
    return link.number(names.LINK_NODES) if link is not None else 0
