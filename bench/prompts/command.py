"""``foredraft bench prompts``: how long first tokens of long prompts take, and whether steps stall.

The target has the shape of a large model and no files, as in ``bench step``. Sequences with random
prompts are opened at once in the step loop that the verify service runs, chunks of prompts and
steps on the device included: per sequence milliseconds to its first token, told to who asked; then
those between steps. Of ``--rounds`` the median counts. With ``--profile`` also which kernels a
prompt is made of, and for how much of the time the device has nothing to do between steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench.prompts.served import ServedPrompts, medians
from bench.report import check_output, machine, write_report
from bench.step.command import add_target_flags, gpu_for, make_weights
from bench.step.profile import (
    PROFILE_HEADING,
    idle_share,
    kernel_table,
    profile_lines,
    traced,
)
from foredraft.cli.faults import CommandError
from foredraft.cli.options import number_in, positive_int
from foredraft.config import FP8
from foredraft.engine.fp8.kernel_operations import KernelOperations
from foredraft.engine.fp8.kv import CodedKV, coded_block_bytes
from foredraft.engine.fp8.model import Model
from foredraft.engine.fp8.runner import Fp8Runner
from foredraft.engine.fp8.weights import Weights
from foredraft.engine.kv import BLOCK
from foredraft.engine.model_config import UnsupportedModel
from foredraft.params import Range
from foredraft.wire.messages import ModelInfo

_SEQUENCES, _LENGTH = Range(1, 64), Range(1, 2**20)
_SPARE = 2  # times the KV that all sequences need
_WATCHED_SECONDS, _WATCHED_TOKENS = 0.3, 250


def main(arguments: list[str]) -> int:
    """Measure, print and write.

    Raises:
        InvalidField: an option cannot be used.
        CommandError: there is no such GPU, or no such source.
    """
    args = _parser().parse_args(arguments)
    check_output(args.json)
    device, context = gpu_for("prompts"), args.prompt + args.tokens
    operations = KernelOperations()
    try:
        weights = make_weights(args.shape, args.source, device, context, operations)
    except UnsupportedModel as error:
        raise CommandError(str(error)) from error
    runner = _runner(weights, operations, args.sequences * context)
    served = ServedPrompts(runner, args.sequences)
    served.wait(served.start(args.sequences, runner.chunk + 1, 2))  # captures what rounds need
    rounds = []
    for _ in range(args.rounds):
        heard = served.start(args.sequences, args.prompt, args.tokens)
        served.wait(heard)
        rounds.append(heard.report())
    row = medians(rounds) | {"rounds": rounds}
    if args.profile:
        row |= _profiled(served, runner, args)
    served.stop()
    sys.stdout.write(f"{json.dumps({k: v for k, v in row.items() if k != 'kernels'})}\n")
    for line in [PROFILE_HEADING, *profile_lines(row.get("kernels", ()))]:
        sys.stdout.write(f"{line}\n")
    config, gpu = weights.config, torch.cuda.get_device_name(device)
    target = {"layers": config.layers, "hidden": config.hidden, "dtype": FP8}
    asked = {"sequences": args.sequences, "prompt": args.prompt}
    content = {"machine": machine() | {"gpu": gpu}, **target, **asked, **row}
    write_report(args.json, "prompts", arguments, content)
    return 0


def _runner(weights: Weights, operations: KernelOperations, tokens: int) -> Fp8Runner:
    """With KV for so many tokens, and as much again."""
    config = weights.config
    mib = -(-_SPARE * tokens * coded_block_bytes(config) // BLOCK // 2**20)
    kv = CodedKV(config, mib, weights.embedding.device)
    info = ModelInfo("shape", "", len(weights.head), config.context_length, (), FP8)
    return Fp8Runner(Model(weights, kv.memory, operations), kv, info)


def _profiled(served: ServedPrompts, runner: Fp8Runner, args: argparse.Namespace) -> dict[str, Any]:
    """Of the prompts alone: kernels by chunk. Of the steps behind them: the device's idle share."""
    chunks = args.sequences * -(-args.prompt // runner.chunk)

    def feed() -> None:
        served.wait(served.start(args.sequences, args.prompt, 1))

    kernels = kernel_table(traced(feed), chunks)
    heard = served.start(args.sequences, args.prompt, _WATCHED_TOKENS)
    served.wait(heard, first=True)
    idle = idle_share(traced(lambda: time.sleep(_WATCHED_SECONDS)))
    served.wait(heard)
    return {"chunk": runner.chunk, "idle": round(idle, 4), "kernels": kernels}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target_flags(parser)
    for name, allowed, default, text in (
        ("sequences", _SEQUENCES, 4, "opened at once"),
        ("prompt", _LENGTH, 10_000, "tokens of each prompt"),
        ("tokens", _LENGTH, 1000, "tokens of each answer"),
    ):
        parser.add_argument(
            f"--{name}",
            type=number_in(allowed),
            default=default,
            metavar="N",
            help=f"{text} (default {default})",
        )
    parser.add_argument("--rounds", type=positive_int, default=3, metavar="N", help="(default 3)")
    parser.add_argument(
        "--profile", action="store_true", help="kernels of prompts, and idle between steps"
    )
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
