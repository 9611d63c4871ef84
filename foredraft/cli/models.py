"""``foredraft models path [ID]``: where a model is on this machine."""

from __future__ import annotations

import argparse

from foredraft.cli.options import Subparsers, add_command, find_model
from foredraft.models.catalog import DEFAULT_MODEL, KNOWN_MODELS


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "models", "known models", _path)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    path = add_command(
        actions, "path", "print the directory of a model, which is fetched if needed", _path
    )
    path.add_argument(
        "model", metavar="ID", nargs="?", default=DEFAULT_MODEL, help=", ".join(KNOWN_MODELS)
    )


def _path(args: argparse.Namespace) -> int:
    print(find_model(args.model))
    return 0
