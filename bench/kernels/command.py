"""``foredraft bench kernels``: every GPU kernel, checked and timed beside its controls.

Kernels run at the shapes of real models, beside what libraries do. First each is
checked (errors, the same bits for a row in any company), then timed: weights are rotated so that
they come from memory, launches are captured in CUDA graphs, and what is compared takes turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bench.kernels.bandwidth import bandwidth
from bench.kernels.case import OURS, Case, Prepared
from bench.kernels.outcome import Outcome, as_json, broken, line
from bench.kernels.registry import all_cases
from bench.kernels.timing import first_line, time_launches
from bench.kernels.tuning import TUNED_SHAPES, tune
from bench.report import check_output, machine, write_report
from bench.values import names_of
from foredraft.cli.faults import CommandError
from foredraft.cli.options import positive_int
from foredraft.params import InvalidField
from kernels.skinny_table import BF16, FP8, W8A16

_OPERANDS = (FP8, W8A16, BF16)

Timer = Callable[[Prepared], tuple[dict[str, float], dict[str, str]]]


def main(arguments: list[str]) -> int:
    """Measure, print and write; 1 if a kernel is wrong.

    Raises:
        InvalidField: an option cannot be used.
        CommandError: there is no GPU.
    """
    cases = all_cases()
    args = _parser(sorted({case.kernel for case in cases})).parse_args(arguments)
    wanted = _wanted(cases, args)
    check_output(args.json)
    if not torch.cuda.is_available():
        raise CommandError("bench kernels needs an NVIDIA GPU that torch can use; there is none")
    device = torch.device("cuda", torch.cuda.current_device())
    if args.tune:
        return _tune(args, device)
    return _measure(wanted, device, args, arguments)


def _wanted(cases: Sequence[Case], args: argparse.Namespace) -> list[Case]:
    """The cases that the options leave; tuning has shapes only.

    Raises:
        InvalidField: they leave none, or do not go together.
    """
    for option in ("only", "json"):
        if args.tune and getattr(args, option):
            raise InvalidField(f"--{option}", "left out beside --tune")
    kept = [case for case in cases if args.only is None or case.kernel in args.only]
    names = [case.shape for case in kept] if not args.tune else [s.name for s in TUNED_SHAPES]
    if not any(args.shape in name for name in names):
        raise InvalidField("--shape", f"a part of a shape's name, such as {names[0]!r}")
    return [case for case in kept if args.shape in case.shape]


def _tune(args: argparse.Namespace, device: torch.device) -> int:
    shapes = [shape for shape in TUNED_SHAPES if args.shape in shape.name]
    for text in tune(args.tune, shapes, device, args.rounds):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    return 0


def _measure(
    cases: Sequence[Case], device: torch.device, args: argparse.Namespace, arguments: list[str]
) -> int:
    speed = bandwidth(device, args.rounds)
    gpu = torch.cuda.get_device_name(device)
    sys.stdout.write(f"{gpu}: {speed}\n")
    outcomes: list[Outcome] = []
    for case in cases:
        outcomes.append(
            run_case(case, device, lambda prepared: time_launches(prepared, args.rounds))
        )
        sys.stdout.write(f"{line(as_json(outcomes[-1], outcomes, speed.copy))}\n")
        sys.stdout.flush()
        torch.cuda.empty_cache()
    content = {
        "machine": machine() | {"gpu": gpu},
        **speed.report,
        "cases": [as_json(outcome, outcomes, speed.copy) for outcome in outcomes],
    }
    write_report(args.json, "kernels", arguments, content)
    return int(any(broken(outcome) for outcome in outcomes))


def run_case(case: Case, device: torch.device, timer: Timer) -> Outcome:
    """Prepare, check and time one case; a kernel that fails is told, and the others go on."""
    try:
        prepared = case.prepare(device)
        findings = prepared.check()
    except Exception as error:
        return Outcome(case, {}, {}, {OURS: first_line(error)})
    times, faults = timer(prepared)
    return Outcome(case, findings, times, faults)


def _parser(kernels: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="foredraft bench kernels", description=__doc__)
    parser.add_argument(
        "--only",
        type=names_of(kernels),
        metavar="NAMES",
        help=f"with commas: {', '.join(kernels)}",
    )
    parser.add_argument(
        "--shape", default="", metavar="TEXT", help="only shapes with this in their name"
    )
    parser.add_argument("--rounds", type=positive_int, default=15, metavar="N")
    parser.add_argument(
        "--tune",
        type=names_of(_OPERANDS),
        metavar="NAMES",
        help=f"find tilings for kernels/skinny_table.py instead; of {', '.join(_OPERANDS)}",
    )
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
