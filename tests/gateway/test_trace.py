"""A caller's trace goes on; anything else begins a new one."""

from __future__ import annotations

import pytest

from gateway.trace import start_trace

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_valid_parent_is_passed_on():
    """Without a span of the gateway's own the workers' spans are the caller's children."""
    trace = start_trace(f"00-{TRACE}-{SPAN}-01")
    assert (trace.trace_id, trace.parent) == (TRACE, f"00-{TRACE}-{SPAN}-01")


@pytest.mark.parametrize(
    "parent",
    [
        None,
        "",
        "garbage",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-xyz-01",
    ],
)
def test_anything_else_is_not(parent):
    first, second = start_trace(parent), start_trace(parent)
    assert first.trace_id != second.trace_id and len(first.trace_id) == 32
    assert first.parent.startswith(f"00-{first.trace_id}-")
    assert first.parent.endswith("-00"), "nobody keeps the span that would be the parent"
