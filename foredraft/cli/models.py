"""``foredraft models``: where a model is on this machine; drafts as single files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from foredraft.cli.faults import CommandError
from foredraft.cli.options import Subparsers, add_command, find_model
from foredraft.models.catalog import DEFAULT_MODEL, KNOWN_MODELS
from foredraft.models.fetch import ModelError
from foredraft.params import InvalidField


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "models", "known models and packed drafts", _path)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    path = add_command(
        actions, "path", "print the directory of a model, which is fetched if needed", _path
    )
    path.add_argument(
        "model", metavar="ID", nargs="?", default=DEFAULT_MODEL, help=", ".join(KNOWN_MODELS)
    )
    pack = add_command(
        actions,
        "pack-draft",
        "pack a draft into one file: weights in 8 bits, none of its target's own",
        _pack,
    )
    pack.add_argument("draft", metavar="DIR", help="the draft, as train-draft leaves it")
    _add_target(pack)
    pack.add_argument("--out", metavar="FILE", type=Path, required=True, help="write this file")
    unpack = add_command(
        actions, "unpack-draft", "unpack such a file and print the draft's directory", _unpack
    )
    unpack.add_argument("file", metavar="FILE", type=Path, help="the packed draft")
    _add_target(unpack)
    unpack.add_argument(
        "--out", metavar="DIR", type=Path, help="a new directory; else one in the cache is used"
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", metavar="DIR|ID", default=DEFAULT_MODEL, help="the model that it guesses for"
    )


def _path(args: argparse.Namespace) -> int:
    print(find_model(args.model, "ID"))
    return 0


def _pack(args: argparse.Namespace) -> int:
    if args.out.is_dir() or not args.out.absolute().parent.is_dir():
        raise InvalidField("--out", f"a file in a folder that is there, not {str(args.out)!r}")
    draft, target = find_model(args.draft, "DIR"), find_model(args.target, "--target")
    from foredraft.models.draft_packing import pack_draft

    try:
        pack_draft(draft, target).write(args.out)
    except ModelError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"--out {args.out} cannot be written: {error.strerror}") from error
    sys.stdout.write(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB\n")
    return 0


def _unpack(args: argparse.Namespace) -> int:
    target = find_model(args.target, "--target")
    from foredraft.models.draft_unpacking import unpack_draft

    try:
        directory = unpack_draft(args.file, target, args.out)
    except ModelError as error:
        raise CommandError(str(error)) from error
    sys.stdout.write(f"{directory}\n")
    return 0
