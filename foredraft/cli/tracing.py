"""The flag that writes a trace file, shared by the commands that start processes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from foredraft.cli.faults import CommandError
from foredraft.config import TracingConfig, read_tracing


def add_trace_file_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace-file",
        metavar="FILE",
        type=Path,
        help="append the spans of every request; `foredraft trace FILE` draws them",
    )


def tracing_config(file: Path | None) -> TracingConfig:
    """Refuses a file that cannot be written before anything is started."""
    if file is not None:
        try:
            os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        except OSError as error:
            raise CommandError(f"--trace-file {file}: {error.strerror}") from error
    return read_tracing(file)
