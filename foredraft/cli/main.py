"""``foredraft``: reads the arguments, runs one command, turns its faults into one line each."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from foredraft.cli import (
    bench,
    chat,
    doctor,
    generate,
    health,
    make_prompts,
    models,
    run,
    serve,
    trace,
    train_draft,
    up,
    widen,
)
from foredraft.cli.faults import CommandError
from foredraft.cli.until_signal import INTERRUPTED
from foredraft.errors import ForedraftError
from foredraft.params import InvalidField, Unsupported
from foredraft.printable import one_line

_COMMANDS = (
    up,
    serve,
    run,
    generate,
    chat,
    models,
    make_prompts,
    train_draft,
    widen,
    bench,
    doctor,
    health,
    trace,
)
_USAGE = 2
_CLOSED_PIPE = 141  # what shells say of a command that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 failed, 2 wrong arguments.

    A reader that has closed its end of the pipe, as ``head`` does, ends the command in silence.
    """
    try:
        try:
            return _run(argv)
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        # What is still buffered would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE


def _run(argv: Sequence[str] | None) -> int:
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except (InvalidField, Unsupported) as error:
        return _complain(error, _USAGE)
    except (CommandError, ForedraftError) as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft",
        description="Serve a large language model faster without changing a token of what it says.",
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(subparsers)
    return parser


def _complain(error: Exception, code: int) -> int:
    print(f"foredraft: {one_line(str(error))}", file=sys.stderr)
    return code
