"""``foredraft run``: the whole life of a stack around one answer."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from foredraft.cli.connection import Connection
from foredraft.cli.faults import CommandError
from foredraft.cli.generate import (
    add_sampling_flags,
    check_request,
    prompt_arguments,
    sampling_arguments,
)
from foredraft.cli.logs import configure_logging
from foredraft.cli.options import Subparsers, add_command, add_model_flags
from foredraft.cli.until_signal import INTERRUPTED, run_until_signal
from foredraft.cli.up import stack_config
from foredraft.config import StackConfig
from foredraft.params import check_params
from foredraft.request import sampling_params


def add_parser(subparsers: Subparsers) -> None:
    text = "start a stack, stream one chat answer, print statistics, stop"
    parser = add_command(subparsers, "run", text, run)
    parser.add_argument("prompt", metavar="PROMPT")
    add_model_flags(parser)
    add_sampling_flags(parser)


def run(args: argparse.Namespace) -> int:
    # A wrong value is told before a model is fetched or loaded.
    request = prompt_arguments(args.prompt, raw=False) | sampling_arguments(args)
    check_params(sampling_params(check_request(request).options))
    # The gateway warns until the model is loaded, which is what happens here anyway.
    configure_logging("supervisor", "warning")
    config = dataclasses.replace(stack_config(args, "127.0.0.1", 0), log_level="error")
    return run_until_signal(_run(config, request), INTERRUPTED)


async def _run(config: StackConfig, request: dict[str, Any]) -> int:
    from foredraft.cli.answer import stream_answer
    from foredraft.supervisor.stack import StackError, running_stack

    try:
        async with running_stack(config) as stack:
            print("Loading the model in three processes", file=sys.stderr, flush=True)
            await stack.ready()
            await stream_answer(Connection(stack.local_address), request, show_stats=True)
    except StackError as error:
        raise CommandError(str(error)) from error
    return 0
