"""``foredraft trace``: where the time of a request went, drawn from a trace file."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from foredraft.cli.faults import CommandError
from foredraft.cli.options import Subparsers, add_command
from foredraft.telemetry.drawing import draw, summary
from foredraft.telemetry.records import SpanRecord, read_requests, read_spans
from foredraft.telemetry.timeline import Timeline, build_timeline


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "trace", "draw where the time of a request went", _run)
    parser.add_argument("file", metavar="FILE", type=Path, help="what --trace-file has written")
    parser.add_argument(
        "--request",
        metavar="TRACE_ID",
        help="the request to draw; without it all are listed, a single one is drawn",
    )
    parser.add_argument("--html", metavar="OUT", type=Path, help="write a page, too")


def _run(args: argparse.Namespace) -> int:
    try:
        requests = read_requests(args.file)
    except OSError as error:
        raise CommandError(f"{args.file}: {error.strerror}") from error
    chosen = _choose(requests, args.request, args.file)
    if chosen is None:
        if args.html is not None:
            raise CommandError("--html needs --request: the file has several requests")
        for request in requests:
            print(f"{request.trace_id}  {request.name}  {summary(request)}")
        return 0
    timeline = build_timeline(chosen, read_spans(args.file, chosen.trace_id))
    if args.html is not None:  # first: whoever reads what is printed may stop at any line
        _write(args.html, timeline)
    print(draw(timeline, shutil.get_terminal_size((100, 24)).columns))
    if args.html is not None:
        print(f"wrote {args.html}")
    return 0


def _choose(requests: list[SpanRecord], trace_id: str | None, file: Path) -> SpanRecord | None:
    """The request to draw: the one asked for, or the only one; None to list them all.

    A trace can have several requests, if its caller made several calls: the last is drawn.
    """
    if trace_id is not None:
        requests = [request for request in requests if request.trace_id == trace_id]
        if not requests:
            raise CommandError(f"{file} has no request of trace {trace_id}")
        return requests[-1]
    if not requests:
        raise CommandError(f"{file} has no request")
    return requests[0] if len(requests) == 1 else None


def _write(out: Path, timeline: Timeline) -> None:
    from foredraft.telemetry.page import render_page

    try:
        out.write_text(render_page(timeline), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--html {out}: {error.strerror}") from error
