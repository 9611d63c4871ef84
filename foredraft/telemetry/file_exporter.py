"""Spans as lines of JSON in a file that several processes write together."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, StatusCode, format_span_id, format_trace_id

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class FileExporter(SpanExporter):
    """Appends one line per span, each in one write: lines of other processes stay whole, too.

    ``role`` is the name of this process in the file. Raises OSError if it cannot be opened.
    """

    def __init__(self, path: Path, role: str) -> None:
        self._role = role
        self._file = os.open(path, _APPEND, 0o600)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            for span in spans:
                line = json.dumps(span_record(span, self._role), separators=(",", ":"))
                os.write(self._file, line.encode() + b"\n")
        except OSError:
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        os.close(self._file)


def span_record(span: ReadableSpan, role: str) -> dict[str, Any]:
    """A span as plain values; times are nanoseconds since the epoch on its process's clock."""
    record = {
        "name": span.name,
        "role": role,
        **_ids(span.context),
        "parent_id": format_span_id(span.parent.span_id) if span.parent else "",
        "start_ns": span.start_time,
        "end_ns": span.end_time,
        "attributes": _plain(span.attributes),
        "events": [
            {"name": e.name, "at_ns": e.timestamp, "attributes": _plain(e.attributes)}
            for e in span.events
        ],
        "links": [
            {**_ids(link.context), "attributes": _plain(link.attributes)} for link in span.links
        ],
    }
    if span.status.status_code is StatusCode.ERROR:
        record["error"] = span.status.description or ""
    return record


def _ids(context: SpanContext | None) -> dict[str, str]:
    if context is None:
        return {"trace_id": "", "span_id": ""}
    return _formatted(context.trace_id, context.span_id)


@lru_cache(maxsize=1024)  # a step is linked to the same requests as the one before
def _formatted(trace_id: int, span_id: int) -> dict[str, str]:
    """To be read only."""
    return {"trace_id": format_trace_id(trace_id), "span_id": format_span_id(span_id)}


def _plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(attributes or {})
