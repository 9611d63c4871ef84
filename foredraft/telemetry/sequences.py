"""The requests that a worker has open, as far as their traces are kept.

Messages are seen where they arrive, in the event loop's thread; work is told by the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from opentelemetry.trace import Link, Span, SpanContext, Tracer

from foredraft.telemetry import names
from foredraft.telemetry.context import read_parent, span_context
from foredraft.wire.messages import OpenSequence

Key = tuple[int, int]  # (stream, seq_id)


@dataclass(slots=True)
class TracedSequence:
    """``request`` is the span that work for the sequence is linked to."""

    opened: OpenSequence
    span: Span
    request: SpanContext
    began: float = field(default_factory=time.perf_counter)
    _links: dict[tuple[int, ...], Link] = field(default_factory=dict)

    def link(self, names: Sequence[str], counts: tuple[int, ...]) -> Link:
        """The link of work that gave the sequence so much; ``names`` are always the same.

        Most work gives a sequence as much as some before did, and has that link: what it costs to
        make one, and to write it out, is paid once.
        """
        link = self._links.get(counts)
        if link is None:
            attributes = dict(zip(names, counts, strict=True))
            link = self._links[counts] = Link(self.request, attributes)
        return link


Traced = TypeVar("Traced", bound=TracedSequence)


class TracedSequences(Generic[Traced]):
    """Open sequences by name; ``kind`` is made for each whose trace is kept."""

    def __init__(self, tracer: Tracer, name: str, kind: type[Traced]) -> None:
        self._tracer = tracer
        self._name = name
        self._kind = kind
        self._open: dict[Key, Traced] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, stream: int, opened: OpenSequence) -> None:
        which = {names.SEQUENCE: opened.seq_id, names.INCARNATION: opened.incarnation}
        parent = read_parent(opened.traceparent)
        span = self._tracer.start_span(self._name, parent, attributes=which)
        if span.is_recording():
            request = span_context(opened.traceparent)
            self._open[stream, opened.seq_id] = self._kind(opened, span, request)

    def get(self, key: Key) -> Traced | None:
        return self._open.get(key)

    def find(self, key: Key, incarnation: int) -> Traced | None:
        traced = self.get(key)
        return traced if traced is not None and traced.opened.incarnation == incarnation else None

    def pop(self, key: Key) -> Traced | None:
        return self._open.pop(key, None)

    def of_stream(self, stream: int) -> list[Key]:
        return [key for key in list(self._open) if key[0] == stream]

    def items(self) -> list[tuple[Key, Traced]]:
        return list(self._open.items())
