"""Which kernels a step is made of, and what each adds to its time.

Kernels that start early overlap the end of the one before them, so their own durations add up to
more than the step. What a kernel adds is the time from the latest end of all before it to its own
end: these times, gaps included, are the step.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.step.cell import StepBench

_STEPS = 20
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
# What compilers put around the name that a kernel has in its source.
_WRAPPING = re.compile(r"^(?:void )?(?:at::native::|\(anonymous namespace\)::)*|[<(].*$")


@dataclass(frozen=True, slots=True)
class Span:
    """One launch on the device; microseconds."""

    name: str
    start: float
    end: float


def profile_cell(bench: StepBench) -> list[dict[str, Any]]:
    """Rows of `kernel_table` for the graph of a cell that has run before."""

    def run() -> None:
        for _ in range(_STEPS):
            bench.step.again(bench.bucket)

    return kernel_table(traced(run), _STEPS)


def traced(run: Callable[[], object]) -> list[Span]:
    """What runs on the device while ``run`` does, whoever launched it."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return spans_of(events)


def idle_share(spans: Iterable[Span]) -> float:
    """The share of the time from the first start to the last end in which nothing runs."""
    ordered = sorted(spans, key=lambda one: one.start)
    if not ordered:
        return 0.0
    idle, latest = 0.0, ordered[0].end
    for span in ordered:
        idle += max(0.0, span.start - latest)
        latest = max(latest, span.end)
    return idle / (latest - ordered[0].start)


def spans_of(events: Iterable[Mapping[str, Any]]) -> list[Span]:
    """What ran on the device, of a trace; products of one step differ by their grids."""
    return [
        Span(
            f"{_WRAPPING.sub('', event['name']) or event['name']} {_grid(event['args'])}".strip(),
            event["ts"],
            event["ts"] + event["dur"],
        )
        for event in events
        if event.get("cat") in _ON_DEVICE
    ]


def _grid(arguments: Mapping[str, Any]) -> str:
    return "x".join(map(str, arguments.get("grid", ())))


def kernel_table(spans: Iterable[Span], steps: int) -> list[dict[str, Any]]:
    """By name, what adds most first.

    launches: per step. us: mean duration of one. added_us: per step. share: of all that is added.
    """
    launches: dict[str, int] = {}
    durations: dict[str, float] = {}
    added: dict[str, float] = {}
    latest: float | None = None
    for span in sorted(spans, key=lambda one: (one.end, one.start)):
        name = span.name
        launches[name] = launches.get(name, 0) + 1
        durations[name] = durations.get(name, 0.0) + span.end - span.start
        before = span.start if latest is None else latest
        added[name] = added.get(name, 0.0) + span.end - before
        latest = span.end
    whole = sum(added.values())
    return [
        {
            "kernel": name,
            "launches": round(launches[name] / steps, 2),
            "us": round(durations[name] / launches[name], 3),
            "added_us": round(time / steps, 2),
            "share": round(time / whole, 4),
        }
        for name, time in sorted(added.items(), key=lambda one: -one[1])
    ]


PROFILE_HEADING = f"{'kernel':<34}  launches       us  added us   share"


def profile_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The table under PROFILE_HEADING."""
    return [
        f"{row['kernel'][:34]:<34}  {row['launches']:>8.1f}  {row['us']:>7.2f}"
        f"  {row['added_us']:>8.1f}  {row['share']:>6.1%}"
        for row in rows
    ]
