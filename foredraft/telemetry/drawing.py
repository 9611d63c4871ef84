"""A timeline as lines of text."""

from __future__ import annotations

from collections.abc import Iterable

from foredraft.telemetry import names
from foredraft.telemetry.records import SpanRecord
from foredraft.telemetry.timeline import PARTS, Bar, Row, Timeline

_SHADES = " ░▒▓█"
_LABELS = 14  # columns before the bars
_NUMBERS = 22  # and behind them
_NARROWEST = 20


def draw(timeline: Timeline, columns: int) -> str:
    """One line per row: its name, its bars over the request's time, its seconds and share."""
    width = max(_NARROWEST, columns - _LABELS - _NUMBERS)
    lines = [*describe(timeline), ""]
    for row in timeline.rows:
        bars = _cells(row.bars, timeline.seconds, width)
        beside = "" if row.name in PARTS else " beside"
        lines.append(
            f"{row.name:<{_LABELS}}{bars}{_numbers(row.seconds, timeline.seconds)}{beside}"
        )
    rest = _numbers(timeline.unaccounted, timeline.seconds)
    lines.append(f"{'unaccounted':<{_LABELS}}{'':{width}}{rest}")
    lines.append(f"{'total':<{_LABELS}}{'':{width}}{_numbers(timeline.seconds, timeline.seconds)}")
    return "\n".join(line.rstrip() for line in lines)


def describe(timeline: Timeline) -> list[str]:
    """What the request was, in a line or two."""
    request, numbers = timeline.request, timeline.request.attributes
    lines = [f"{request.name}  trace {request.trace_id}", summary(request)]
    if timeline.missing:
        lines.append(f"{timeline.missing} steps of it are not in the file")
    if request.number(names.CHOICES) > 1:
        lines.append("shown is the time of the choice that was heard last")
    shown = numbers.get(names.HIT_STEPS), numbers.get(names.ACCEPTED_NODES)
    if None not in shown:
        lines.append(
            f"{shown[0]} steps were hits; {shown[1]} of {numbers.get(names.VERIFIED_NODES)} "
            "guesses that were verified were right"
        )
    return lines


def summary(request: SpanRecord) -> str:
    numbers = request.attributes
    tokens = numbers.get(names.USAGE_OUTPUT_TOKENS, 0)
    finish = _finishes(request)
    text = (
        f"{milliseconds(request.seconds)}: {numbers.get(names.USAGE_INPUT_TOKENS, 0)} prompt "
        f"tokens, {tokens} tokens in {numbers.get(names.STEPS, 0)} steps"
    )
    error = numbers.get(names.ERROR_TYPE)
    return text + (f", {finish}" if finish else "") + (f", failed: {error}" if error else "")


def _finishes(request: SpanRecord) -> str:
    """How it ended; where it had several choices, how many of them."""
    counts = {
        name.removeprefix(names.FINISHES): count
        for name, count in request.attributes.items()
        if name.startswith(names.FINISHES)
    }
    if request.number(names.CHOICES) <= 1:
        return ", ".join(counts)
    each = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    return f"{request.number(names.CHOICES)} choices: {each}"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def percent(row: Row | float, whole: float) -> str:
    seconds = row.seconds if isinstance(row, Row) else row
    return f"{100 * seconds / whole if whole else 0.0:.1f} %"


def _numbers(seconds: float, whole: float) -> str:
    return f"{milliseconds(seconds):>13}{percent(seconds, whole):>9}"


def _cells(bars: Iterable[Bar], whole: float, width: int) -> str:
    """Each cell is as dark as its part of the time is covered."""
    covered = [0.0] * width
    for bar in bars:
        first, last = (at / whole * width if whole else 0.0 for at in (bar.start, bar.end))
        for cell in range(max(0, int(first)), min(width, int(last) + 1)):
            covered[cell] += max(0.0, min(last, cell + 1) - max(first, cell))
    return "".join(_shade(part) for part in covered)


def _shade(part: float) -> str:
    """Anything at all can be seen."""
    if part <= 0.001:
        return _SHADES[0]
    return _SHADES[min(4, 1 + int(part * 4))]
