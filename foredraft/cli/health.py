"""``foredraft health ADDRESS``: the probe of a container, which needs no other program."""

from __future__ import annotations

import argparse
import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from foredraft.cli.faults import CommandError
from foredraft.cli.options import Subparsers, add_command, number_in
from foredraft.params import Range
from foredraft.wire.channel import private_channel

_TIMEOUT = Range(0.0, 3600.0, whole=False, open_low=True)


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers, "health", "ask a process whether it serves; exit code 1 if not", run
    )
    parser.add_argument("address", metavar="ADDRESS", help="HOST:PORT or unix:PATH")
    parser.add_argument(
        "--timeout",
        type=number_in(_TIMEOUT),
        metavar="SECONDS",
        default=3.0,
        help="longest wait for an answer",
    )


def run(args: argparse.Namespace) -> int:
    try:
        status = asyncio.run(_ask(args.address, args.timeout))
    except grpc.aio.AioRpcError as error:
        raise CommandError(f"no answer from {args.address}: {error.details()}") from error
    print(health_pb2.HealthCheckResponse.ServingStatus.Name(status))
    return 0 if status == health_pb2.HealthCheckResponse.SERVING else 1


async def _ask(address: str, seconds: float) -> health_pb2.HealthCheckResponse.ServingStatus:
    async with private_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
    return answer.status
