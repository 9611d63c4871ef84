"""The trace file: a batch is one write, and every line is whole."""

from __future__ import annotations

import json
import os

import pytest
from opentelemetry.trace import Link
from support.spans import PARENT, SPAN, TRACE

from foredraft.telemetry.context import span_context
from foredraft.telemetry.file_exporter import FileExporter
from foredraft.telemetry.records import read_spans
from foredraft.telemetry.setup import current_tracing, traced_to

SPANS = 5


class Kept:
    """A processor that leaves the spans to the test."""

    def __init__(self) -> None:
        self.spans = []

    def on_start(self, span, parent_context=None):
        pass

    def on_end(self, span):
        self.spans.append(span)

    def shutdown(self):
        pass


def made():
    """Each is linked to the same request twice, by one link that was there before and a new one."""
    kept, context = Kept(), span_context(PARENT)
    same = Link(context, {"tokens": 1})
    with traced_to([kept], "verify"):
        for number in range(SPANS):
            links = [same, Link(context, {"tokens": number})]
            current_tracing().batch.record("step", links, number, 10, {"rows": number})
    return kept.spans


@pytest.fixture
def writes(monkeypatch):
    """The lengths of all writes; the system takes only as much as it likes."""
    lengths, write = [], os.write

    def part(file: int, content: bytes) -> int:
        lengths.append(len(content))
        return write(file, content[:900])

    monkeypatch.setattr(os, "write", part)
    return lengths


def test_a_batch_is_one_write(tmp_path, monkeypatch):
    lengths, write = [], os.write
    monkeypatch.setattr(os, "write", lambda f, c: lengths.append(len(c)) or write(f, c))
    exporter = FileExporter(tmp_path / "t", "verify")
    for _ in range(2):
        exporter.export(made())
    exporter.shutdown()
    assert len(lengths) == 2 and sum(lengths) == (tmp_path / "t").stat().st_size


def test_what_a_write_leaves_is_written_after_it(tmp_path, writes):
    exporter = FileExporter(tmp_path / "t", "verify")
    exporter.export(made())
    exporter.shutdown()
    assert len(writes) > 1
    assert len(read_spans(tmp_path / "t", TRACE)) == SPANS


def test_a_line_says_what_the_span_says(tmp_path):
    exporter = FileExporter(tmp_path / "t", "verify")
    exporter.export(made())
    exporter.shutdown()
    lines = [json.loads(line) for line in (tmp_path / "t").read_text().splitlines()]
    assert [line["start_ns"] for line in lines] == list(range(SPANS))
    last = lines[-1]
    assert (last["name"], last["role"], last["trace_id"]) == ("step", "verify", TRACE)
    assert last["attributes"] == {"rows": 4} and last["parent_id"] == ""
    link = {"trace_id": TRACE, "span_id": SPAN}
    assert last["links"] == [link | {"attributes": {"tokens": tokens}} for tokens in (1, 4)]
