"""Logging of a process: one line per record on stderr, with the role of the process."""

from __future__ import annotations

import argparse
import logging

from foredraft.config import LOG_LEVELS


def configure_logging(role: str, level: str) -> None:
    """``level`` is one of LOG_LEVELS."""
    logging.basicConfig(
        level=level.upper(), format=f"%(asctime)s {role} %(levelname)s %(name)s: %(message)s"
    )


def add_log_level_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="least important record to show"
    )
