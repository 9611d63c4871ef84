"""``foredraft bench perplexity``: what each way of holding the weights does to the model.

Log-likelihood of a text, in windows of one context length, through the same rows that decoding
uses.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch

from bench.report import check_output, write_report
from bench.values import names_of, two_or_more
from foredraft.cli.faults import CommandError
from foredraft.cli.options import find_model, positive_int
from foredraft.config import TARGET_DTYPES, EngineConfig, usable_cores
from foredraft.engine.model_config import UnsupportedModel, check_whole, read_model_config
from foredraft.engine.runner import Runner, SequenceRows, load_runner
from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.params import InvalidField
from foredraft.prompt_file import read_text
from foredraft.tokenizer_hash import read_tokenizer

_ROWS = 64
_PROMPTS = "--prompts"


def main(arguments: list[str]) -> int:
    """Measure, print and write.

    Raises:
        InvalidField: an option cannot be used.
        CommandError: a model cannot be had or run.
    """
    args = _parser().parse_args(arguments)
    check_output(args.json)
    text = read_text(args.prompts, option=_PROMPTS)
    model = find_model(args.model)
    windows = _windows(model, text, args.window, args.limit)
    count = sum(len(window) - 1 for window in windows)
    results = {}
    for dtype in args.dtypes:
        loss = _text_loss(EngineConfig(model, dtype=dtype, threads=usable_cores()), windows)
        results[dtype] = round(math.exp(loss / count), 4)
        sys.stdout.write(f"{dtype.ljust(10)} perplexity {results[dtype]} over {count} tokens\n")
    content = {"text": args.prompts.name, "tokens": count, "perplexity": results}
    write_report(args.json, "perplexity", arguments, content)
    return 0


def _windows(model: Path, text: str, width: int, limit: int) -> list[list[int]]:
    """The first tokens of the text in pieces of ``width`` tokens; a last one alone is left out."""
    try:
        context = read_model_config(model).context_length
        tokens: list[int] = read_tokenizer(model).encode(text).ids
    except UnsupportedModel as error:
        raise CommandError(str(error)) from error
    if width > context:
        raise InvalidField("--window", f"at most the model's context, {context} tokens")
    starts = range(0, min(len(tokens), limit * width), width)
    windows = [tokens[start : start + width] for start in starts]
    windows = [window for window in windows if len(window) > 1]
    if not windows:
        raise InvalidField(_PROMPTS, "a text of at least two tokens")
    return windows


def _text_loss(settings: EngineConfig, windows: list[list[int]]) -> float:
    try:
        check_whole(settings.model)
        runner = load_runner(settings)
        return sum(_loss(runner, window) for window in windows)
    except (ValueError, MemoryError) as error:  # a model or dtype that cannot be run; no KV left
        raise CommandError(f"{settings.dtype}: {error}") from error


def _loss(runner: Runner, tokens: list[int]) -> float:
    """Sum of -log p of every token after the first."""
    blocks = runner.kv.allocate(runner.kv.blocks_for(len(tokens)))
    total = 0.0
    for start in range(0, len(tokens) - 1, _ROWS):
        fed = tokens[start : min(start + _ROWS, len(tokens) - 1)]
        paths = [tuple(range(start, start + row + 1)) for row in range(len(fed))]
        logits = runner.forward([SequenceRows(blocks, start, fed, paths)])
        targets = torch.tensor(tokens[start + 1 : start + 1 + len(fed)], device=logits.device)
        total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
    runner.kv.free(blocks)
    return total


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="foredraft bench perplexity", description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="plain text")
    parser.add_argument("--limit", type=positive_int, default=8, metavar="N", help="windows")
    parser.add_argument(
        "--window", type=two_or_more, default=512, metavar="N", help="tokens per window"
    )
    parser.add_argument(
        "--dtypes",
        type=names_of(TARGET_DTYPES),
        default="float32,float16,bfloat16",
        metavar="NAMES",
        help=f"with commas: {', '.join(TARGET_DTYPES)}",
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="DIR|ID")
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
