"""``foredraft bench survival``: what clients feel of workers that die, and what is left of clients
that do.

Real processes and the real protocol; the models' passes are sleeps. Requests are given up at random
stages. Then streamed answers whose ids are known are disturbed: the draft worker is killed, the
verify worker is killed, the verify worker is stopped, each on a stack of its own. The exit code is
1 if an answer failed or had other ids, or if memory did not come back; times decide nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from bench.gauges import Gauges
from bench.leavers import Leavers
from bench.report import check_output, write_report
from bench.strokes import STROKES, Ids, Outcome, Striker, Stroke, undisturbed
from bench.tiny_directory import make_tiny_directory
from foredraft.aio import AsyncClient
from foredraft.cli.fake import fake_stack
from foredraft.cli.faults import CommandError
from foredraft.cli.options import positive_int
from foredraft.config import FakeEngine, StackConfig
from foredraft.supervisor.stack import Stack, StackError, running_stack

_PROMPT = "An answer that no model gives."


def main(arguments: list[str]) -> int:
    args = _parser().parse_args(arguments)
    check_output(args.json)
    target, draft = args.engine
    found = asyncio.run(_measure(args))
    content: dict[str, Any] = {
        "step_ms": target.step_ms,
        "draft_ms": draft.step_ms,
        "requests": args.requests,
        "tokens": args.tokens,
        "rounds": args.rounds,
        **found,
    }
    write_report(args.json, "survival", arguments, content)
    return 0 if _sound(found) else 1


async def _measure(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="foredraft-survival-") as directory:
        model = make_tiny_directory(Path(directory) / "stand-in", context=2 * args.tokens + 8192)
        config = _config(model, args.engine)
        prompts = [f"{number} {_PROMPT}" for number in range(args.requests)]
        async with _stack(config) as (stack, gauges), AsyncClient(stack.local_address) as client:
            known = await undisturbed(client, prompts, args.tokens)
            cancels = await _cancel(client, gauges, args)
        outcomes: dict[Stroke, list[Outcome]] = {stroke: [] for stroke in STROKES}
        for _ in range(args.rounds):
            for stroke, those in outcomes.items():
                those.append(await _strike(config, stroke, prompts, args.tokens, known))
    strokes = {stroke.name: _told(stroke.name, those) for stroke, those in outcomes.items()}
    return {"strokes": strokes, "cancels": cancels}


async def _strike(
    config: StackConfig, stroke: Stroke, prompts: Sequence[str], tokens: int, known: Ids
) -> Outcome:
    """A stack that has lost nothing yet: restarts that follow each other wait longer."""
    async with _stack(config) as (stack, gauges):
        return await Striker(stack, gauges, prompts, tokens, known).strike(stroke)


async def _cancel(client: AsyncClient, gauges: Gauges, args: argparse.Namespace) -> dict[str, Any]:
    leavers = Leavers(client, gauges)
    times = [await leavers.leave(args.cancels) for _ in range(args.rounds)]
    came_back = [seconds for seconds in times if seconds is not None]
    given_up, not_back = sum(leavers.ways.values()), len(times) - len(came_back)
    free_again = _spread(came_back)
    sys.stdout.write(
        f"{given_up} requests given up: all is free again after {_spread_text(free_again)}, "
        f"{not_back} times not\n"
    )
    return {
        "given_up": given_up,
        "ways": dict(leavers.ways),
        "not_back": not_back,
        "free_again_s": free_again,
    }


def _told(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    seconds = {
        what: _spread([outcome.seconds[what] for outcome in outcomes])
        for what in outcomes[0].seconds
    }
    failed, differing = (
        sum(getattr(outcome, each) for outcome in outcomes) for each in ("failed", "differing")
    )
    times = ", ".join(f"{what} after {_spread_text(spread)}" for what, spread in seconds.items())
    sys.stdout.write(f"{name}: {times}; {failed} failed, {differing} with other ids\n")
    return {"seconds": seconds, "failed": failed, "differing": differing}


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    """Nothing of nothing."""
    if not seconds:
        return {}
    return {"median": round(statistics.median(seconds), 3), "worst": max(seconds)}


def _spread_text(spread: Mapping[str, float]) -> str:
    return "{median:.2f} s ({worst:.2f} at worst)".format(**spread) if spread else "no time"


def _sound(found: Mapping[str, Any]) -> bool:
    strokes = found["strokes"].values()
    answered = not any(stroke["failed"] or stroke["differing"] for stroke in strokes)
    return answered and not found["cancels"]["not_back"]


@contextlib.asynccontextmanager
async def _stack(config: StackConfig) -> AsyncIterator[tuple[Stack, Gauges]]:
    """Raises CommandError if it does not come up."""
    async with running_stack(config) as stack, aiohttp.ClientSession() as session:
        try:
            await stack.ready()
        except StackError as error:
            raise CommandError(str(error)) from error
        yield stack, Gauges(session, str(stack.http_address))


def _config(model: Path, engine: tuple[FakeEngine, FakeEngine]) -> StackConfig:
    target, draft = engine
    return StackConfig(
        grpc_host="127.0.0.1",
        grpc_port=0,
        http_port=0,
        model=model,
        fake_target=target,
        fake_draft=draft,
        log_level="error",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench survival",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--engine",
        metavar="STEP_MS,DRAFT_MS[,TOP1]",
        type=fake_stack,
        default=(FakeEngine(17.5), FakeEngine(0.3, 0.754)),
        help="the two models' passes, and how often the draft's best guess is right",
    )
    parser.add_argument("--requests", type=positive_int, default=8, help="at once")
    parser.add_argument("--tokens", type=positive_int, default=1000, help="of every answer")
    parser.add_argument("--cancels", type=positive_int, default=200, help="in every round")
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
