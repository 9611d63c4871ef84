"""``foredraft generate``: one answer from a running stack."""

from __future__ import annotations

import argparse
from typing import Any

from foredraft.call import build_request
from foredraft.cli.connection import Connection, add_connection_flags, read_connection
from foredraft.cli.options import (
    Subparsers,
    add_command,
    add_speculation_flag,
    number_in,
)
from foredraft.cli.until_signal import INTERRUPTED, run_until_signal
from foredraft.params import BIAS, RANGES, Range
from foredraft.request import GenerateRequest

# Sampling flags are the SDK's keyword arguments; one that is not given is left to its default.
_NUMBERS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
_TOKEN = Range(0, 2**31 - 1)


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "generate", "stream one answer from a running stack", run)
    parser.add_argument("prompt", metavar="PROMPT")
    add_connection_flags(parser)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--chat", action="store_true", help="apply the chat template (the default)")
    kind.add_argument("--raw", action="store_true", help="continue the text as it stands")
    parser.add_argument("--stats", action="store_true", help="end with a line of statistics")
    add_sampling_flags(parser)
    add_speculation_flag(parser, default=None)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling", argument_default=argparse.SUPPRESS)
    for name in _NUMBERS:
        allowed = RANGES[name]
        metavar = "INT" if allowed.whole else "FLOAT"
        group.add_argument(_flag(name), type=number_in(allowed), metavar=metavar, help=str(allowed))
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text")
    group.add_argument(
        "--stop-token-ids", type=number_in(_TOKEN), nargs="+", metavar="ID", help="end at these"
    )
    group.add_argument(
        "--logit-bias", type=_read_bias, action="append", metavar="ID=BIAS", help="add to a logit"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on at the end of the text")


def sampling_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """What was given on the command line, as keyword arguments of the SDK."""
    names = [*_NUMBERS, "stop", "stop_token_ids", "logit_bias", "ignore_eos"]
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    return given


def prompt_arguments(text: str, *, raw: bool) -> dict[str, Any]:
    return {"prompt": text} if raw else {"messages": [{"role": "user", "content": text}]}


def check_request(request: dict[str, Any]) -> GenerateRequest:
    """What the SDK will make of these keyword arguments; raises InvalidField as it would."""
    given = dict(request)
    prompt, messages = given.pop("prompt", None), given.pop("messages", None)
    return build_request(prompt, messages, "", given)


def run(args: argparse.Namespace) -> int:
    request = prompt_arguments(args.prompt, raw=args.raw) | sampling_arguments(args)
    if args.speculation is not None:
        request["speculation"] = args.speculation
    check_request(request)
    connection = read_connection(args)
    return run_until_signal(_generate(connection, request, args.stats), INTERRUPTED)


async def _generate(connection: Connection, request: dict[str, Any], show_stats: bool) -> int:
    from foredraft.cli.answer import stream_answer

    await stream_answer(connection, request, show_stats)
    return 0


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read_bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return number_in(_TOKEN)(token), number_in(BIAS)(bias)
    except argparse.ArgumentTypeError:
        allowed = f"must be ID=BIAS, ID {_TOKEN} and BIAS {BIAS}, for example 42=-100, not {text}"
        raise argparse.ArgumentTypeError(allowed) from None
