"""``foredraft bench step``: whole steps of a target in FP8, selection and sampling included.

With ``--dtype bf16`` the same with bfloat16 linear layers, to compare.

The target has the shape of a large model and no files: it is a small model widened layer by layer,
or random. Per cell (sequences, nodes, context) steps are run as the engine runs them, each launched
before the commits of the one before it are read: milliseconds per step, how much of them the device
has nothing to do, and which share reading at the memory's own speed, measured in the same run,
would take. With ``--profile`` also which kernels a step is made of.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.kernels.bandwidth import bandwidth
from bench.report import check_output, machine, write_report
from bench.step.bf16_operations import Bf16Operations
from bench.step.cell import Cell, StepBench, cells_of
from bench.step.profile import PROFILE_HEADING, profile_cell, profile_lines
from bench.step.random_weights import ROOM, RandomWeights, random_config
from bench.step.timing import time_cell
from foredraft.cli.faults import CommandError
from foredraft.cli.options import find_model, number_in, positive_int
from foredraft.cli.widen import add_shape_flag
from foredraft.config import FP8_CAPABILITY
from foredraft.engine.fp8.kernel_operations import KernelOperations
from foredraft.engine.fp8.weights import Read, Weights, quantise
from foredraft.engine.model_config import ModelConfig, UnsupportedModel, read_model_config
from foredraft.engine.weights import opened_weights
from foredraft.models.widen.shape import Shape
from foredraft.models.widen.wide_weights import WideWeights
from foredraft.models.widen.widening import plan_widening
from foredraft.params import Range

_COUNT, _CONTEXT = Range(0, 4096), Range(1, 2**24)
OPERATIONS: dict[str, type[KernelOperations]] = {"fp8": KernelOperations, "bf16": Bf16Operations}
_ROUNDS = 15  # of reading, whose speed is the floor


def main(arguments: list[str]) -> int:
    """Measure, print and write.

    Raises:
        InvalidField: an option cannot be used.
        CommandError: there is no such GPU, or no such source.
    """
    args = _parser().parse_args(arguments)
    check_output(args.json)
    cells = cells_of(args.sequences, args.nodes, args.contexts)
    device = gpu_for("step")
    try:
        operations = OPERATIONS[args.dtype]()
        weights = make_weights(args.shape, args.source, device, max(args.contexts), operations)
    except UnsupportedModel as error:
        raise CommandError(str(error)) from error
    speed = bandwidth(device, _ROUNDS)
    gpu = torch.cuda.get_device_name(device)
    sys.stdout.write(f"{gpu}: {speed}\n{HEADING}\n")
    rows = []
    for cell in cells:
        rows.append(_measure(weights, cell, args, speed.read))
        told = [line(rows[-1])]
        if "kernels" in rows[-1]:
            told += [PROFILE_HEADING, *profile_lines(rows[-1]["kernels"])]
        sys.stdout.write("".join(f"{text}\n" for text in told))
        sys.stdout.flush()
    config = weights.config
    target = {"layers": config.layers, "hidden": config.hidden, "dtype": args.dtype}
    content = {"machine": machine() | {"gpu": gpu}, **target, **speed.report, "steps": rows}
    write_report(args.json, "step", arguments, content)
    return 0


def make_weights(
    shape: Shape,
    source: str | None,
    device: torch.device,
    context: int,
    operations: KernelOperations,
) -> Weights:
    """The target; only a layer of it is ever held in another precision than it runs in.

    Raises:
        UnsupportedModel: the source is no model that can be widened.
    """
    if source is None:
        config = random_config(shape, context)
        return _made(RandomWeights(config, device), config, device, operations)
    directory = find_model(source, "--source")
    known = read_model_config(directory)
    widening = plan_widening(known, shape)
    room = max(widening.target.context_length, context + ROOM)
    with opened_weights(directory, known) as read:
        wide = WideWeights(read, widening, dtype=torch.bfloat16, device=device)
        target = replace(widening.target, context_length=room)
        return _made(wide, target, device, operations)


@torch.inference_mode()
def _made(
    read: Read, config: ModelConfig, device: torch.device, operations: KernelOperations
) -> Weights:
    return quantise(read, config, config.vocab_rows, device, operations)


def _measure(
    weights: Weights, cell: Cell, args: argparse.Namespace, read_gb_s: float
) -> dict[str, Any]:
    """One row of the report; a cell that does not fit says so."""
    try:
        bench = StepBench(weights, cell, OPERATIONS[args.dtype]())
        bench.step.compile((bench.bucket,))
        times = time_cell(bench, args.steps)
        kernels = {"kernels": profile_cell(bench)} if args.profile else {}
    except torch.cuda.OutOfMemoryError:
        return described(cell, None, 0.0)
    finally:
        torch.cuda.empty_cache()
    floor = cell.moved_bytes(weights) / read_gb_s / 1e6
    return described(cell, times, floor) | kernels


def described(cell: Cell, times: tuple[float, float] | None, floor: float) -> dict[str, Any]:
    """A cell's row: ``times`` are milliseconds per step, and of them those of the device's work.

    None: it does not fit into the device's memory.
    """
    row: dict[str, Any] = {
        "sequences": cell.sequences,
        "nodes": cell.nodes,
        "context": cell.context,
    }
    if times is None:
        return row | {"fits": False}
    step, busy = times
    return row | {
        "fits": True,
        "ms": round(step, 4),
        "busy_ms": round(busy, 4),
        "idle": round(max(0.0, 1 - busy / step), 4),
        "floor_ms": round(floor, 4),
        "of_floor": round(floor / step, 4),
    }


HEADING = "sequences  nodes  context       ms    idle  of floor"


def line(row: dict[str, Any]) -> str:
    """A row of the table under HEADING."""
    place = f"{row['sequences']:>9}  {row['nodes']:>5}  {row['context']:>7}"
    if not row["fits"]:
        return f"{place}  does not fit"
    return f"{place}  {row['ms']:>7.3f}  {row['idle']:>6.1%}  {row['of_floor']:>8.1%}"


def gpu_for(name: str) -> torch.device:
    """The GPU of the benchmark of this name.

    Raises:
        CommandError: there is none that multiplies FP8.
    """
    if not torch.cuda.is_available():
        raise CommandError(f"bench {name} needs an NVIDIA GPU that torch can use; there is none")
    device = torch.device("cuda", torch.cuda.current_device())
    if torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        least = ".".join(map(str, FP8_CAPABILITY))
        raise CommandError(f"bench {name} needs a GPU of compute capability {least} or newer")
    return device


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """Which target is made up: what `make_weights` takes."""
    add_shape_flag(parser)
    parser.add_argument(
        "--source", metavar="DIR|ID", help="the small model to widen; without it, random weights"
    )


def _numbers(allowed: Range) -> Callable[[str], list[int]]:
    """How argparse reads whole numbers with commas between them."""
    read = number_in(allowed)
    return lambda text: [read(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target_flags(parser)
    parser.add_argument(
        "--dtype",
        choices=tuple(OPERATIONS),
        default="fp8",
        help="of weights and activations (default fp8)",
    )
    lists: Sequence[tuple[str, Range, list[int], str]] = (
        ("sequences", Range(1, 256), [1, 16, 64], "sequences in a step"),
        ("nodes", _COUNT, [0, 7, 8, 16, 24, 64], "guesses in a step, over all its sequences"),
        ("contexts", _CONTEXT, [2048, 8192, 32_768], "committed tokens of each sequence"),
    )
    for name, allowed, default, text in lists:
        parser.add_argument(
            f"--{name}",
            type=_numbers(allowed),
            default=default,
            metavar="N,N",
            help=f"{text} (default {','.join(map(str, default))})",
        )
    parser.add_argument(
        "--steps", type=positive_int, default=100, metavar="N", help="per cell (default 100)"
    )
    parser.add_argument(
        "--profile", action="store_true", help="per cell, its kernels and what each adds"
    )
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
