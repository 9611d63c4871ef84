"""``foredraft bench policy``: which schedule is the quickest where, with stand-ins for the models.

Real processes and the real protocol; only the passes of the two models are sleeps. For pairs of a
target's and a draft's step, and several numbers of requests at once, clients ask again and again
while the gateway's own counters are read. Every stack is also measured without guesses, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.load import Counters, Throughput, clients
from bench.report import check_output, write_report
from bench.tiny_directory import make_tiny_directory
from bench.values import names_of
from foredraft.aio import AsyncClient
from foredraft.cli.options import positive_int
from foredraft.config import FakeEngine, StackConfig
from foredraft.params import Schedule
from foredraft.supervisor.stack import running_stack

_PROMPT = "An answer that no model gives."
_SCHEDULES = [schedule.name.lower() for schedule in Schedule]


@dataclass(frozen=True, slots=True)
class Case:
    """Milliseconds of the two models' passes, and how often the draft's best guess is right."""

    step_ms: float
    draft_ms: float
    acceptance: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of all requests together: medians over the windows."""

    case: Case
    schedule: str
    requests: int
    plain: float
    speculating: float
    tokens_per_step: float

    @property
    def ratio(self) -> float:
        return self.speculating / self.plain


# The grid of the goals: a slow and a quick target; then a poor draft, and a slow one.
_CASES = (
    Case(17.5, 0.3, 0.754),
    Case(2.5, 0.3, 0.754),
    Case(17.5, 0.3, 0.3),
    Case(2.5, 0.3, 0.3),
    Case(17.5, 50.0, 0.754),
    Case(2.5, 50.0, 0.754),
)
_SETTLE_SECONDS = 1.5  # the prompts of all requests that begin at once are read
_LEARN_SECONDS = 6.0  # the drafter comes up, averages settle, ways are tried


def main(arguments: list[str]) -> int:
    args = _parser().parse_args(arguments)
    check_output(args.json)
    asyncio.run(_measure(args, arguments))
    return 0


async def _measure(args: argparse.Namespace, arguments: list[str]) -> None:
    """Writes the report anew after every stack: the whole grid takes a long time."""
    speeds: list[Speed] = []
    with tempfile.TemporaryDirectory(prefix="foredraft-policy-") as directory:
        model = make_tiny_directory(Path(directory) / "stand-in")
        for case in args.cases:
            for schedule in args.schedules:
                async for speed in _stack_speeds(case, schedule, model, args):
                    speeds.append(speed)
                    sys.stdout.write(_line(speed) + "\n")
                    sys.stdout.flush()
                write_report(args.json, "policy", arguments, _content(args, speeds))


def _content(args: argparse.Namespace, speeds: list[Speed]) -> dict[str, Any]:
    return {
        "tokens": args.tokens,
        "seconds": args.seconds,
        "rounds": args.rounds,
        "speeds": [asdict(speed) | {"ratio": round(speed.ratio, 3)} for speed in speeds],
    }


async def _stack_speeds(
    case: Case, schedule: str, model: Path, args: argparse.Namespace
) -> AsyncIterator[Speed]:
    config = StackConfig(
        grpc_host="127.0.0.1",
        grpc_port=0,
        http_port=0,
        model=model,
        schedule=Schedule[schedule.upper()],
        fake_target=FakeEngine(case.step_ms),
        fake_draft=FakeEngine(case.draft_ms, case.acceptance),
        log_level="error",
    )
    async with running_stack(config) as stack, aiohttp.ClientSession() as session:
        await stack.ready()
        counters = Counters(session, str(stack.http_address))
        async with AsyncClient(stack.local_address) as client:
            for requests in args.requests:
                yield await _speed(client, counters, case, schedule, requests, args)


async def _speed(
    client: AsyncClient,
    counters: Counters,
    case: Case,
    schedule: str,
    requests: int,
    args: argparse.Namespace,
) -> Speed:
    async def throughput(speculation: str, settle_seconds: float) -> Throughput:
        async def ask(number: int) -> object:
            prompt = f"{number} {_PROMPT}"
            return await client.generate(prompt, max_tokens=args.tokens, speculation=speculation)

        async with clients(requests, ask, settle_seconds):
            return await counters.during(args.seconds)

    await throughput("model", _LEARN_SECONDS)
    plain, guessing = [], []
    for _ in range(args.rounds):
        plain.append((await throughput("off", _SETTLE_SECONDS)).tokens_per_second)
        guessing.append(await throughput("model", _SETTLE_SECONDS))
    return Speed(
        case,
        schedule,
        requests,
        round(statistics.median(plain), 1),
        round(statistics.median(one.tokens_per_second for one in guessing), 1),
        round(statistics.median(one.tokens_per_step for one in guessing), 2),
    )


def _line(speed: Speed) -> str:
    case = speed.case
    return (
        f"step {case.step_ms} ms, draft {case.draft_ms} ms, top-1 {case.acceptance}: "
        f"{speed.schedule:6} x {speed.requests:2}: plain {speed.plain:8.1f} tokens/s, "
        f"speculating {speed.speculating:8.1f} ({speed.ratio:.2f}x, "
        f"{speed.tokens_per_step} tokens/step)"
    )


def _numbers(text: str) -> list[int]:
    return [positive_int(part) for part in text.split(",")]


def _cases(text: str) -> list[Case]:
    numbers = _numbers(text)
    if max(numbers) > len(_CASES):
        raise argparse.ArgumentTypeError(f"must be numbers from 1 to {len(_CASES)}, not {text!r}")
    return [_CASES[number - 1] for number in numbers]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench policy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--schedules", type=names_of(_SCHEDULES), default=_SCHEDULES)
    parser.add_argument("--requests", type=_numbers, default=[1, 8, 32], help="at once")
    parser.add_argument("--tokens", type=positive_int, default=256, help="of every answer")
    parser.add_argument("--seconds", type=positive_int, default=2, help="of every window")
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--cases", type=_cases, default=_CASES, help="numbers of cases, from 1")
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
