"""The options of ``foredraft bench drafts``, and what cannot go together."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cells import DRAFTS, MAX_DEPTH, MIN_SURVIVAL, SELF_TUNED
from bench.values import names_of, several
from bench.workloads import KINDS
from foredraft.cli.options import DRAFT_NAMES, number_in, positive_int
from foredraft.config import DTYPES
from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.params import InvalidField, Range, SamplingParams, check_params

_SURVIVAL = Range(0.0, 1.0, whole=False)
_ASKING = ("temperatures", "max_tokens", "seed", "ask_at_once")
_MILLISECONDS = Range(0.0, 1e6, whole=False)


def read_options(arguments: list[str], text: str) -> argparse.Namespace:
    """What the command line asks for, before anything is loaded; ``text`` describes the command.

    Raises:
        InvalidField: options do not go together, or sampling is not possible so.
    """
    parser = _parser(text)
    args = parser.parse_args(arguments)
    _check(args)
    if args.reference:
        for name in _ASKING:
            if getattr(args, name) != parser.get_default(name):
                option = f"--{name.replace('_', '-')}"
                raise InvalidField(option, "left out with --reference: nobody is asked")
    return args


def _check(args: argparse.Namespace) -> None:
    if bool(args.workload) == (args.data is not None):
        raise InvalidField("--workload", "given, or --data, and not both")
    if bool(args.answers) == args.reference:
        raise InvalidField("--answers", "given, or --reference, and not both")
    if args.reference and args.live:
        raise InvalidField("--live", "left out with --reference: no model says these answers")
    if args.live and (args.min_survival, args.max_depth) != (MIN_SURVIVAL, MAX_DEPTH):
        allowed = "left out with --min-survival or --max-depth, which services do not take"
        raise InvalidField("--live", allowed)
    if None in args.thresholds and args.pass_ms is not None:
        allowed = f"left out with --thresholds {SELF_TUNED}, which weighs passes as they are"
        raise InvalidField("--pass-ms", allowed)
    for temperature in args.temperatures:
        check_params(SamplingParams(max_tokens=args.max_tokens, temperature=temperature))
    needing = [name for name in args.drafts if DRAFTS[name].needs_model]
    if args.draft != "none" and not needing:
        models = ", ".join(name for name, draft in DRAFTS.items() if draft.needs_model)
        raise InvalidField("--draft", f"left out, or --drafts one of {models}")
    if args.draft == "none" and needing:
        allowed = f"a model directory or id, or auto, with --drafts {','.join(needing)}"
        raise InvalidField("--draft", allowed)


def _workload(text: str) -> tuple[str, Path]:
    name, _, file = text.partition("=")
    if name not in KINDS or not file:
        allowed = f"NAME=FILE, NAME one of {', '.join(KINDS)}"
        raise argparse.ArgumentTypeError(f"must be {allowed}, not {text!r}")
    return name, Path(file)


def _threshold(text: str) -> float | None:
    return None if text == SELF_TUNED else number_in(_SURVIVAL)(text)


def _parser(text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench drafts",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--workload",
        type=_workload,
        action="append",
        metavar="NAME=FILE",
        help=f"rows to ask; may stand several times; NAME: {', '.join(KINDS)}",
    )
    add("--data", type=Path, metavar="DIR", help="a folder with all workloads, as published")
    add(
        "--only",
        type=names_of(list(KINDS)),
        default=list(KINDS),
        metavar="NAMES",
        help="of --data, with commas (default all)",
    )
    add("--limit", type=positive_int, metavar="N", help="rows of every group (default all)")
    add("--answers", type=Path, metavar="FILE", help="recorded answers; made where it lacks them")
    add("--reference", action="store_true", help="the rows' own answers instead")
    add("--temperatures", type=several(float), default=[0.0], metavar="T,…")
    add("--max-tokens", type=positive_int, default=256, metavar="N")
    add("--seed", type=positive_int, default=1, metavar="N", help="a row's number is added")
    add("--ask-at-once", type=positive_int, default=32, metavar="N", help="while recording")
    add("--model", default=DEFAULT_MODEL, metavar="DIR|ID")
    add("--draft", default="none", metavar=DRAFT_NAMES)
    add("--dtype", choices=DTYPES, default="auto")
    add(
        "--drafts",
        type=names_of(list(DRAFTS)),
        default=["suffix"],
        metavar="NAMES",
        help=f"ways of guessing, with commas: {', '.join(DRAFTS)} (default suffix)",
    )
    add(
        "--nodes",
        type=several(positive_int),
        default=[8, 24, 64],
        metavar="N,…",
        help="guesses a step may verify (default 8,24,64)",
    )
    add("--max-depth", type=positive_int, default=MAX_DEPTH, metavar="N")
    add("--min-survival", type=number_in(_SURVIVAL), default=MIN_SURVIVAL, metavar="P")
    add("--at-once", type=positive_int, default=8, metavar="N", help="answers played together")
    add(
        "--jobs",
        type=positive_int,
        default=1,
        metavar="N",
        help="groups of rows played beside each other, by a process each (default 1)",
    )
    add(
        "--thresholds",
        type=several(_threshold),
        default=[],
        metavar="P,…",
        help=f"replay trees with these thresholds, too, {SELF_TUNED} being the one that costs "
        "decide; steps then verify what pays",
    )
    add("--step-ms", type=number_in(_MILLISECONDS), default=40.0, metavar="MS")
    add("--row-ms", type=number_in(_MILLISECONDS), default=1.5, metavar="MS")
    add("--pass-ms", type=number_in(_MILLISECONDS), metavar="MS", help="default: as measured")
    add("--live", action="store_true", help="ask real services the same, for trees")
    add("--json", type=Path, metavar="OUT")
    return parser
