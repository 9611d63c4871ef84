"""``foredraft bench wire``: how long guesses are on their way, with the models stubbed out.

A real gateway process stands between a draft and a verify worker whose models are stubs. The
stubs share one process and so one clock: a round starts when the drafter encodes its batch and
ends when the verifier has decoded it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.report import check_output, write_report
from bench.stub_workers import StubDrafter, StubVerifier, stub_identity
from foredraft.aio import AsyncClient
from foredraft.cli.options import find_model, positive_int
from foredraft.config import worker_environment
from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.supervisor.address import claim_port, join_address, wait_until_serving
from foredraft.supervisor.child import Child
from foredraft.wire.messages import NodeBatch


def main(arguments: list[str]) -> int:
    args = _parser().parse_args(arguments)
    check_output(args.json)
    times = asyncio.run(_measure(args))
    ordered = sorted(times)
    content: dict[str, Any] = {
        "sequences": args.sequences,
        "nodes_per_sequence": args.nodes,
        "rounds": len(times),
        "p50_ms": round(statistics.median(times), 3),
        "p90_ms": round(ordered[len(ordered) * 9 // 10], 3),
        "p99_ms": round(ordered[len(ordered) * 99 // 100], 3),
    }
    sys.stdout.write(
        "draft -> gateway -> verify, {sequences} sequences x {nodes_per_sequence} nodes, "
        "{rounds} rounds: p50 {p50_ms} ms, p90 {p90_ms} ms, p99 {p99_ms} ms\n".format(**content)
    )
    write_report(args.json, "wire", arguments, content)
    return 0


async def _measure(args: argparse.Namespace) -> list[float]:
    """Milliseconds of each round."""
    model = find_model(args.model)
    with tempfile.TemporaryDirectory(prefix="foredraft-wire-") as directory:
        identity = stub_identity(model)
        verifier = StubVerifier(f"unix:{directory}/verify.sock", identity)
        drafter = StubDrafter(f"unix:{directory}/draft.sock", identity)
        async with (
            verifier,
            drafter,
            _gateway(model, directory) as address,
            AsyncClient(address) as client,
        ):
            requests = [
                asyncio.create_task(client.generate([1], max_tokens=64))
                for _ in range(args.sequences)
            ]
            await drafter.wait_for_sequences(args.sequences)
            batch = drafter.make_guesses(args.nodes)
            times = [await _round(drafter, verifier, batch) for _ in range(args.rounds)]
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
    return times[args.rounds // 10 :]  # the first tenth warms up


async def _round(drafter: StubDrafter, verifier: StubVerifier, batch: NodeBatch) -> float:
    arrived = verifier.next_batch()
    started = time.perf_counter()
    drafter.send_guesses(batch)
    finished = await arrived
    await asyncio.sleep(0.002)  # a round meets an idle wire, as in a serial step loop
    return (finished - started) * 1000


@contextlib.asynccontextmanager
async def _gateway(model: Path, directory: str) -> AsyncIterator[str]:
    address = join_address("127.0.0.1", claim_port("127.0.0.1", 0))
    command = [
        sys.executable, "-m", "foredraft", "serve", "gateway", "--exit-with-parent",
        "--grpc-listen", address, "--model", str(model), "--log-level", "error",
        "--verify", f"unix:{directory}/verify.sock", "--draft", f"unix:{directory}/draft.sock",
    ]  # fmt: skip
    gateway = Child("gateway", command, worker_environment(1))
    await gateway.start()
    try:
        await wait_until_serving(address)
        yield address
    finally:
        await gateway.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench wire",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--prompts", metavar="FILE", help="not needed: the models are stubs")
    parser.add_argument(
        "--limit", type=positive_int, dest="rounds", default=500, metavar="N", help="rounds"
    )
    parser.add_argument("--sequences", type=positive_int, default=32)
    parser.add_argument("--nodes", type=positive_int, default=8, help="per sequence")
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="DIR|ID")
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
