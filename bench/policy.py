"""``foredraft bench policy``: which schedule is the quickest where, with stand-ins for the models.

Real processes and the real protocol; only the passes of the two models are sleeps. For every pair
of a target's and a draft's step, every schedule answers the same requests, at several numbers of
requests at once. Plain decoding is measured in every stack, in turns with speculation.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.report import write_report
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
    """Tokens per second of all requests together: medians over the rounds."""

    case: Case
    schedule: str
    requests: int
    plain: float
    speculating: float
    tokens_per_step: float

    @property
    def ratio(self) -> float:
        return self.speculating / self.plain


# The grid of the goals: a slow and a quick target, a poor draft, a slow draft.
_CASES = (
    Case(17.5, 0.3, 0.754),
    Case(2.5, 0.3, 0.754),
    Case(17.5, 0.3, 0.3),
    Case(2.5, 0.3, 0.3),
    Case(17.5, 50.0, 0.754),
    Case(2.5, 50.0, 0.754),
)


def main(arguments: list[str]) -> int:
    args = _parser().parse_args(arguments)
    speeds = asyncio.run(_measure(args))
    content: dict[str, Any] = {
        "tokens": args.tokens,
        "rounds": args.rounds,
        "speeds": [asdict(speed) | {"ratio": round(speed.ratio, 3)} for speed in speeds],
    }
    write_report(args.json, "policy", arguments, content)
    return 0


async def _measure(args: argparse.Namespace) -> list[Speed]:
    speeds = []
    cases = _CASES[: args.cases]
    with tempfile.TemporaryDirectory(prefix="foredraft-policy-") as directory:
        model = make_tiny_directory(Path(directory) / "stand-in")
        for case in cases:
            for schedule in args.schedules:
                for speed in await _stack_speeds(case, schedule, model, args):
                    speeds.append(speed)
                    sys.stdout.write(_line(speed) + "\n")
                    sys.stdout.flush()
    return speeds


async def _stack_speeds(
    case: Case, schedule: str, model: Path, args: argparse.Namespace
) -> list[Speed]:
    config = StackConfig(
        grpc_host="127.0.0.1",
        grpc_port=0,
        model=model,
        schedule=Schedule[schedule.upper()],
        fake_target=FakeEngine(case.step_ms),
        fake_draft=FakeEngine(case.draft_ms, case.acceptance),
        log_level="error",
    )
    async with running_stack(config) as stack:
        await stack.ready()
        async with AsyncClient(stack.local_address) as client:
            await _round(
                client, 1, 2 * args.tokens, "model"
            )  # the drafter comes up, averages settle
            return [
                await _speed(client, case, schedule, requests, args) for requests in args.requests
            ]


async def _speed(
    client: AsyncClient, case: Case, schedule: str, requests: int, args: argparse.Namespace
) -> Speed:
    plain, speculating, tokens_per_step = [], [], 0.0
    for _ in range(args.rounds):
        plain.append((await _round(client, requests, args.tokens, "off"))[0])
        speed, tokens_per_step = await _round(client, requests, args.tokens, "model")
        speculating.append(speed)
    return Speed(
        case,
        schedule,
        requests,
        round(statistics.median(plain), 1),
        round(statistics.median(speculating), 1),
        round(tokens_per_step, 2),
    )


async def _round(
    client: AsyncClient, requests: int, tokens: int, speculation: str
) -> tuple[float, float]:
    """Tokens per second of ``requests`` different requests at once; tokens per step of one."""
    started = time.perf_counter()
    results = await asyncio.gather(
        *(
            client.generate(f"{number} {_PROMPT}", max_tokens=tokens, speculation=speculation)
            for number in range(requests)
        )
    )
    seconds = time.perf_counter() - started
    total = sum(len(result.token_ids) for result in results)
    steps = sum(result.stats.steps for result in results)
    return total / seconds, total / steps


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench policy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--schedules", type=names_of(_SCHEDULES), default=_SCHEDULES)
    parser.add_argument("--requests", type=_numbers, default=[1, 8, 32], help="at once")
    parser.add_argument("--tokens", type=positive_int, default=64, help="of every answer")
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--cases", type=positive_int, default=len(_CASES), help="the first N")
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
