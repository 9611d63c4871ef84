"""``foredraft widen``: a small model inside a large one, to measure the large one's cost."""

from __future__ import annotations

import argparse
import asyncio
import importlib
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

from tqdm import tqdm

from foredraft.cli.faults import CommandError
from foredraft.cli.options import Subparsers, add_command, find_model, number_in
from foredraft.cli.until_signal import INTERRUPTED, run_until_signal
from foredraft.engine.model_config import UnsupportedModel
from foredraft.models.fetch import ModelError
from foredraft.models.widen.shape import SHAPES, SIZES, Shape
from foredraft.params import RANGES, Range

NAME = "widen"
_PACKAGES = {"torch", "safetensors"}
_SIZE = Range(1, 2**24)


def add_parser(subparsers: Subparsers) -> None:
    text = "make a large model that computes what a small one does, at the large one's cost"
    parser = add_command(subparsers, NAME, text, _run)
    parser.add_argument("source", metavar="SRC", help="the small model: a directory or a known id")
    parser.add_argument("destination", metavar="DST", type=Path, help="the directory to make of it")
    add_shape_flag(parser, ", where it is not the source's")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="how weights are held"
    )
    parser.add_argument(
        "--pad-vocabulary",
        metavar="N",
        type=number_in(_SIZE),
        help="rows of the embedding: those beyond the source's are no tokens",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=number_in(RANGES["seed"]),
        default=0,
        help="of the weights that change nothing",
    )


def add_shape_flag(parser: argparse.ArgumentParser, which: str = "") -> None:
    """``which``: what the help says of the sizes that are given."""
    parser.add_argument(
        "--shape",
        type=shape_value,
        required=True,
        metavar=f"{'|'.join(SHAPES)}|SIZE=N,...",
        help=f"a known shape; or sizes, of {', '.join(SIZES)}{which}",
    )


def _run(args: argparse.Namespace) -> int:
    source = find_model(args.source, "SRC")
    package = _load("foredraft.models.widen.wide_directory")
    try:
        widening = package.read_widening(source, args.shape, args.pad_vocabulary)
        directory = package.WideDirectory(source, widening, args.dtype, args.seed)
        directory.check_room(args.destination)
        code = run_until_signal(_write(directory, args.destination), INTERRUPTED)
    except (ModelError, UnsupportedModel) as error:
        raise CommandError(str(error)) from error
    except (OSError, _load("safetensors").SafetensorError) as error:
        raise CommandError(f"{args.destination} cannot be written: {error}") from error
    if code == 0:
        size = f"{directory.parameters} parameters, {directory.weight_bytes / 1e9:.1f} GB"
        print(f"{args.destination}: {size}")
    return code


async def _write(directory: Any, destination: Path) -> int:
    """Writes in a thread of its own; a signal asks it to end, and is waited for."""
    stop = Event()
    writing = asyncio.create_task(asyncio.to_thread(_write_until, stop, directory, destination))
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        stop.set()
        return await writing


def _write_until(stop: Event, directory: Any, destination: Path) -> int:
    size = directory.weight_bytes
    with (
        closing(directory.write(destination)) as written,
        tqdm(desc="Widening", total=size, unit="B", unit_scale=True) as bar,
    ):
        for count in written:
            bar.update(count)
            if stop.is_set():
                return INTERRUPTED
    return 0


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise CommandError(f"{NAME} needs {error.name}: pip install 'foredraft[worker]'") from error


def shape_value(text: str) -> Shape:
    """How argparse reads a known shape or sizes with commas between them."""
    if text in SHAPES:
        return SHAPES[text]
    pairs = [part.partition("=") for part in text.split(",")]
    names = [name for name, _, _ in pairs]
    if len(set(names)) < len(names) or not set(names) <= set(SIZES):
        known, sizes = ", ".join(SHAPES), ", ".join(SIZES)
        allowed = f"{known}, or SIZE=N with commas between them, SIZE none twice of {sizes}"
        raise argparse.ArgumentTypeError(f"must be {allowed}, not {text!r}")
    return Shape(**{name: number_in(_SIZE)(value) for name, _, value in pairs})
