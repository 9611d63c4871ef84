"""The W3C trace context of one request."""

from __future__ import annotations

import re
from dataclasses import dataclass

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

TRACEPARENT_KEY = "traceparent"

_FORMAT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_IDS = RandomIdGenerator()


@dataclass(frozen=True, slots=True)
class Trace:
    """``parent`` is what the workers get: the request's own span is the parent of theirs."""

    trace_id: str
    parent: str


def start_trace(traceparent: str | None) -> Trace:
    """Continue the caller's trace if it sent a valid one, else begin a new one."""
    trace_id, flags = _parse(traceparent) or (f"{_IDS.generate_trace_id():032x}", "01")
    return Trace(trace_id, f"00-{trace_id}-{_IDS.generate_span_id():016x}-{flags}")


def _parse(traceparent: str | None) -> tuple[str, str] | None:
    match = _FORMAT.fullmatch(traceparent or "")
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return match[1], match[3]
