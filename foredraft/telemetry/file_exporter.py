"""Spans as lines of JSON in a file that several processes write together.

A batch of spans is one write, and a link is turned into text once: the engine's thread waits for
whatever is computed here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext, StatusCode, format_span_id, format_trace_id

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC

_encode = json.JSONEncoder(separators=(",", ":")).encode


class FileExporter(SpanExporter):
    """Appends a line per span, a batch in one write: lines of other processes stay whole, too.

    ``role`` is the name of this process in the file. Raises OSError if it cannot be opened.
    """

    def __init__(self, path: Path, role: str) -> None:
        self._role = role
        self._file = os.open(path, _APPEND, 0o600)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        lines = "".join(span_line(span, self._role) for span in spans).encode()
        try:
            while lines:  # a full disk takes only a part
                lines = lines[os.write(self._file, lines) :]
        except OSError:
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        os.close(self._file)


def span_line(span: ReadableSpan, role: str) -> str:
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
    }
    if span.status.status_code is StatusCode.ERROR:
        record["error"] = span.status.description or ""
    links = ",".join(map(_link, span.links))
    return f'{_encode(record)[:-1]},"links":[{links}]}}\n'


@lru_cache(maxsize=4096)  # the same ones are on step after step
def _link(link: Link) -> str:
    return _encode({**_ids(link.context), "attributes": _plain(link.attributes)})


def _ids(context: SpanContext | None) -> dict[str, str]:
    if context is None:
        return {"trace_id": "", "span_id": ""}
    return {
        "trace_id": format_trace_id(context.trace_id),
        "span_id": format_span_id(context.span_id),
    }


def _plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(attributes or {})
