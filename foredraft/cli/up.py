"""``foredraft up``: the three processes, until a signal."""

from __future__ import annotations

import argparse
import dataclasses

from foredraft.cli.fake import add_fake_stack_flag
from foredraft.cli.faults import CommandError
from foredraft.cli.logs import add_log_level_flag, configure_logging
from foredraft.cli.options import (
    DEFAULT_GRPC_PORT,
    Subparsers,
    add_access_flags,
    add_command,
    add_model_flags,
    find_models,
    port_number,
    read_draft_kv_memory,
    read_speculation,
)
from foredraft.cli.tracing import add_trace_file_flag, tracing_config
from foredraft.cli.until_signal import run_until_signal
from foredraft.config import StackConfig
from foredraft.params import Schedule

_SCHEDULES = [schedule.name.lower() for schedule in Schedule]


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "up", "start draft, verify and gateway and serve", run)
    parser.add_argument("--grpc-host", metavar="HOST", default="127.0.0.1", help="listen here")
    parser.add_argument(
        "--grpc-port",
        metavar="N",
        type=port_number,
        default=DEFAULT_GRPC_PORT,
        help="listen here; 0 is any free port",
    )
    parser.add_argument(
        "--http-port",
        metavar="M",
        type=port_number,
        help="answer OpenAI's protocol here, too, on the same host; 0 is any free port",
    )
    add_model_flags(parser)
    add_access_flags(parser)
    parser.add_argument(
        "--restart", choices=("on", "off"), default="on", help="start a process that died again"
    )
    parser.add_argument(
        "--schedule",
        choices=_SCHEDULES,
        default="auto",
        help="when a step starts: serial is draft, then verify; held waits for guesses as long as "
        "they pay; free never waits; auto finds out which of them, or none, brings the most",
    )
    add_fake_stack_flag(parser)
    add_log_level_flag(parser)
    add_trace_file_flag(parser)


def run(args: argparse.Namespace) -> int:
    configure_logging("supervisor", args.log_level)
    spans = tracing_config(args.trace_file)
    target, draft = args.fake_engine or (None, None)
    config = dataclasses.replace(
        stack_config(args, args.grpc_host, args.grpc_port),
        restart=args.restart == "on",
        api_keys=args.api_keys,
        rate=args.rate,
        http_port=args.http_port,
        schedule=Schedule[args.schedule.upper()],
        fake_target=target,
        fake_draft=draft,
        log_level=args.log_level,
        trace_file=spans.file,
    )
    return run_until_signal(_serve(config), interrupted=0)


def stack_config(args: argparse.Namespace, host: str, port: int) -> StackConfig:
    """What the shared model flags ask for; fetches a known model that is not there yet."""
    speculation = read_speculation(args.speculation, args.draft, args.model)
    draft_kv_memory_mib = read_draft_kv_memory(args.draft_kv_memory_mib, args.draft, args.model)
    model, draft = find_models(args.model, args.draft)
    return StackConfig(
        grpc_host=host,
        grpc_port=port,
        model=model,
        draft=draft,
        speculation=speculation,
        dtype=args.dtype,
        max_nodes=args.max_nodes,
        kv_memory_mib=args.kv_memory_mib,
        draft_kv_memory_mib=draft_kv_memory_mib,
        suffix_store=args.suffix_store,
    )


async def _serve(config: StackConfig) -> int:
    from foredraft.supervisor.stack import StackError, running_stack

    try:
        async with running_stack(config) as stack:
            print(*(f"{name} pid={pid}" for name, pid in stack.pids().items()), flush=True)
            await stack.ready()
            print(*("ready", *(f"{door}={at}" for door, at in stack.doors().items())), flush=True)
            await stack.failure()
    except StackError as error:
        raise CommandError(str(error)) from error
    return 0
