"""``foredraft``: reads the arguments, runs one command, turns its faults into one line each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from foredraft.cli import bench, doctor, generate, models, run, serve, up
from foredraft.cli.faults import CommandError
from foredraft.cli.until_signal import INTERRUPTED
from foredraft.errors import ForedraftError
from foredraft.params import InvalidField, Unsupported

_COMMANDS = (up, serve, run, generate, models, bench, doctor)
_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 failed, 2 wrong arguments."""
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
    print(f"foredraft: {error}", file=sys.stderr)
    return code
