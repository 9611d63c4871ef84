"""``foredraft bench gateway``: how many tokens one gateway carries, and how even its steps stay.

Real processes and the real protocol; the target's passes are sleeps. Clients that stream and do
nothing else are at the gRPC door, then at the HTTP door, in windows of three kinds that take
turns: without tracing, for the rate and the processor time; with every request traced, for what
that costs; and with one in so many traced as there are clients, which tells how long each step
took and costs next to nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.load import Counters
from bench.readers import DOORS, GRPC, Load, reading
from bench.report import check_output, write_report
from bench.tiny_directory import make_tiny_directory
from bench.values import names_of
from foredraft.cli.fake import fake_target
from foredraft.cli.options import positive_int
from foredraft.config import FakeEngine, StackConfig
from foredraft.params import Speculation
from foredraft.supervisor.stack import Stack, running_stack
from foredraft.telemetry import names

_DRAFT = FakeEngine(0.3, 0.754)  # a stand-in has both models; this one is never asked
_SETTLE_SECONDS = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")
_FIGURES = {"period": names.PERIOD_US, "forward": names.FORWARD_US}


@dataclass(frozen=True, slots=True)
class Window:
    """What was counted between two moments, in nanoseconds since the epoch."""

    began_ns: int
    ended_ns: int
    tokens: float
    tokens_per_second: float
    deltas: int
    gateway_seconds: float
    verify_seconds: float


@dataclass(frozen=True, slots=True)
class Kind:
    """Of a window: at which stack, and which share of its requests is sampled."""

    stack: Stack
    sampled_every: int = 1


@dataclass(slots=True)
class Windows:
    """Those of one door, by kind."""

    plain: list[Window] = field(default_factory=list)
    traced: list[Window] = field(default_factory=list)
    sparse: list[Window] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    args = _parser().parse_args(arguments)
    check_output(args.json)
    doors = asyncio.run(_measure(args))
    content: dict[str, Any] = {
        "step_ms": args.target.step_ms,
        "clients": args.clients,
        "tokens": args.tokens,
        "seconds": args.seconds,
        "rounds": args.rounds,
        "doors": doors,
    }
    write_report(args.json, "gateway", arguments, content)
    return 0


async def _measure(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="foredraft-gateway-") as directory:
        model = make_tiny_directory(Path(directory) / "stand-in", context=2 * args.tokens)
        spans = Path(directory) / "traces.jsonl"
        async with (
            running_stack(_config(model, args.target)) as plain,
            running_stack(_config(model, args.target, spans)) as traced,
        ):
            await asyncio.gather(plain.ready(), traced.ready())
            measured = {door: await _windows(plain, traced, door, args) for door in args.doors}
        return {
            door: _report(door, windows, read_steps(spans), args.clients)
            for door, windows in measured.items()
        }


async def _windows(plain: Stack, traced: Stack, door: str, args: argparse.Namespace) -> Windows:
    """They take turns, so that a machine that changes changes for all."""
    windows = Windows()
    for _ in range(args.rounds):
        windows.plain.append(await _window(Kind(plain), door, args))
        windows.traced.append(await _window(Kind(traced), door, args))
        windows.sparse.append(await _window(Kind(traced, args.clients), door, args))
    return windows


async def _window(kind: Kind, door: str, args: argparse.Namespace) -> Window:
    stack = kind.stack
    address = stack.local_address if door == GRPC else str(stack.http_address)
    load = Load(door, address, args.clients, args.tokens, kind.sampled_every)
    async with (
        aiohttp.ClientSession() as session,
        reading(load, _SETTLE_SECONDS) as readers,
    ):
        counters = Counters(session, str(stack.http_address))
        workers = [stack.pids()[name] for name in ("gateway", "verify")]
        began, before, deltas = time.time_ns(), list(map(_cpu_seconds, workers)), readers.deltas
        throughput = await counters.during(args.seconds)
        gateway, verify = (
            _cpu_seconds(pid) - earlier for pid, earlier in zip(workers, before, strict=True)
        )
        return Window(
            began,
            time.time_ns(),
            throughput.tokens,
            throughput.tokens_per_second,
            readers.deltas - deltas,
            gateway,
            verify,
        )


def _report(
    door: str, windows: Windows, steps: Sequence[Mapping[str, Any]], clients: int
) -> dict[str, Any]:
    full = full_steps(steps, windows.sparse, clients)
    spreads = {
        # A period of 0 is none: something else than a step came before.
        f"{figure}_us": spread(
            [step["attributes"][name] for step in full if step["attributes"][name]]
        )
        for figure, name in _FIGURES.items()
    }
    found = _speeds(windows) | {"full_steps": len(full)} | spreads
    sys.stdout.write(_lines(door, found))
    return found


def _speeds(windows: Windows) -> dict[str, float]:
    """Medians over the windows; a ratio is that of two windows one after the other."""
    plain, traced = windows.plain, windows.traced
    pairs = zip(plain, traced, strict=True)
    return {
        "tokens_per_s": _median(1, (w.tokens_per_second for w in plain)),
        "tokens_per_delta": _median(3, (w.tokens / max(w.deltas, 1) for w in plain)),
        **_processor_time("", plain),
        "traced_tokens_per_s": _median(1, (w.tokens_per_second for w in traced)),
        "traced_ratio": _median(4, (t.tokens_per_second / p.tokens_per_second for p, t in pairs)),
        **_processor_time("traced_", traced),
    }


def _processor_time(prefix: str, windows: Sequence[Window]) -> dict[str, float]:
    """Seconds of the two processes that the tokens pass through."""
    gateway = (1000 * w.gateway_seconds / w.tokens for w in windows)
    verify = (1000 * w.verify_seconds / w.tokens for w in windows)
    return {
        f"{prefix}gateway_cpu_s_per_1000_tokens": _median(4, gateway),
        f"{prefix}verify_cpu_s_per_1000_tokens": _median(4, verify),
    }


def read_steps(file: Path) -> list[dict[str, Any]]:
    spans = map(json.loads, file.read_text("utf-8").splitlines())
    return [span for span in spans if span["name"] == names.VERIFY_STEP]


def full_steps(
    steps: Iterable[Mapping[str, Any]], windows: Sequence[Window], clients: int
) -> list[Mapping[str, Any]]:
    """The steps in the windows that had all clients in them."""
    return [
        step
        for step in steps
        if step["attributes"][names.SEQUENCES] == clients
        and any(w.began_ns <= step["start_ns"] and step["end_ns"] <= w.ended_ns for w in windows)
    ]


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, and how far from it the others are; nothing of nothing."""
    if not values:
        return {}
    middle = statistics.median(values)
    off = sorted(abs(value - middle) for value in values)
    shares = {f"off_p{share}": off[len(off) * share // 100] for share in (50, 90, 99)}
    return {"median": middle, **shares, "off_max": off[-1]}


def _lines(door: str, found: Mapping[str, Any]) -> str:
    head = (
        "{}: {tokens_per_s:.0f} tokens/s, {tokens_per_delta:.2f} to a delta; "
        "traced {traced_tokens_per_s:.0f} ({traced_ratio:.3f}x)\n"
        "  CPU per 1,000 tokens: gateway {gateway_cpu_s_per_1000_tokens:.3f} s, "
        "traced {traced_gateway_cpu_s_per_1000_tokens:.3f} s; "
        "verify {verify_cpu_s_per_1000_tokens:.3f} s, "
        "traced {traced_verify_cpu_s_per_1000_tokens:.3f} s\n"
    )
    tail = (
        "  {} of {full_steps} full steps: {median:.0f} us, off by {off_p50:.0f} (p50), "
        "{off_p90:.0f} (p90), {off_p99:.0f} (p99), {off_max:.0f} (most)\n"
    )
    spreads = {figure: found[f"{figure}_us"] for figure in _FIGURES}
    return head.format(door, **found) + "".join(
        tail.format(figure, full_steps=found["full_steps"], **one)
        for figure, one in spreads.items()
        if one
    )


def _median(digits: int, values: Iterable[float]) -> float:
    return round(statistics.median(values), digits)


def _cpu_seconds(pid: int) -> float:
    """What a process has computed since it began, in its own code and in the system's."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _config(model: Path, target: FakeEngine, trace_file: Path | None = None) -> StackConfig:
    return StackConfig(
        grpc_host="127.0.0.1",
        grpc_port=0,
        http_port=0,
        model=model,
        speculation=Speculation.OFF,
        fake_target=target,
        fake_draft=_DRAFT,
        log_level="error",
        trace_file=trace_file,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench gateway",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--doors", type=names_of(DOORS), default=DOORS, help=", ".join(DOORS))
    parser.add_argument(
        "--target",
        metavar="STEP_MS",
        type=fake_target,
        default=FakeEngine(2.5),
        help="milliseconds of the target's pass",
    )
    parser.add_argument("--clients", type=positive_int, default=32)
    parser.add_argument("--tokens", type=positive_int, default=1024, help="of the longest answers")
    parser.add_argument("--seconds", type=positive_int, default=2, help="of every window")
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
