"""``foredraft bench NAME …``: hands the rest of the line to that benchmark."""

from __future__ import annotations

import argparse
import importlib

from foredraft.cli.options import Subparsers, add_command

_BENCHMARKS = (
    "compare",
    "drafts",
    "extension",
    "plots",
    "policy",
    "gateway",
    "survival",
    "wire",
    "kernels",
    "step",
    "prompts",
    "perplexity",
    "tables",
)


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "bench", "measure; NAME --help lists a benchmark's flags", run)
    parser.add_argument("name", metavar="NAME", choices=_BENCHMARKS, help=", ".join(_BENCHMARKS))
    parser.add_argument("arguments", metavar="…", nargs=argparse.REMAINDER, help="its flags")


def run(args: argparse.Namespace) -> int:
    benchmark = importlib.import_module(f"bench.{args.name}")
    code: int = benchmark.main(args.arguments)
    return code
