"""The trace file, read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foredraft.printable import one_line
from foredraft.telemetry import names

Attributes = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of a span; ``at`` is in nanoseconds, as are the times of spans."""

    name: str
    at: int
    attributes: Attributes

    def number(self, name: str) -> int:
        return _number(self.attributes, name)


@dataclass(frozen=True, slots=True)
class LinkRecord:
    span_id: str
    attributes: Attributes

    def number(self, name: str) -> int:
        return _number(self.attributes, name)


@dataclass(frozen=True, slots=True)
class SpanRecord:
    name: str
    role: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: Attributes = field(default_factory=dict)
    events: tuple[Moment, ...] = ()
    links: tuple[LinkRecord, ...] = ()

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9

    @property
    def is_request(self) -> bool:
        return names.OPERATION_NAME in self.attributes

    def number(self, name: str) -> int:
        """An attribute that is a whole number; 0 if it is not there."""
        return _number(self.attributes, name)

    def moments(self, name: str) -> list[int]:
        return [event.at for event in self.events if event.name == name]

    def link_to(self, span_id: str) -> LinkRecord | None:
        return next((link for link in self.links if link.span_id == span_id), None)


def read_spans(path: Path, containing: str) -> list[SpanRecord]:
    """The spans whose lines contain a text: a trace id, the name of an attribute.

    A line that is no span is passed over: a process that was killed may have left half a line.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open(encoding="utf-8", errors="replace") as lines:
        return [span for line in lines if containing in line for span in _span(line)]


def read_requests(path: Path) -> list[SpanRecord]:
    """The spans of requests, in the order in which they began. Raises OSError as `read_spans`."""
    requests = [span for span in read_spans(path, names.OPERATION_NAME) if span.is_request]
    return sorted(requests, key=lambda span: span.start)


def _span(line: str) -> Iterator[SpanRecord]:
    try:
        raw = json.loads(line)
        yield SpanRecord(
            name=one_line(raw["name"]),
            role=one_line(raw["role"]),
            trace_id=one_line(raw["trace_id"]),
            span_id=one_line(raw["span_id"]),
            parent_id=one_line(raw["parent_id"]),
            start=int(raw["start_ns"]),
            end=int(raw["end_ns"]),
            attributes=_plain(raw["attributes"]),
            events=tuple(
                Moment(one_line(e["name"]), int(e["at_ns"]), _plain(e["attributes"]))
                for e in raw["events"]
            ),
            links=tuple(LinkRecord(e["span_id"], _plain(e["attributes"])) for e in raw["links"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return


def _plain(attributes: dict[str, Any]) -> Attributes:
    """A list becomes its parts, in one text; what a terminal would obey is escaped."""
    return {one_line(name): _value(value) for name, value in attributes.items()}


def _value(value: Any) -> str | int | float:
    match value:
        case int() | float():
            return value
        case list():
            return one_line(", ".join(str(part) for part in value))
    return one_line(str(value))


def _number(attributes: Attributes, name: str) -> int:
    value = attributes.get(name, 0)
    return value if isinstance(value, int) else 0
