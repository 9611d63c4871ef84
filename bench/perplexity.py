"""``foredraft bench perplexity``: what each way of holding the weights does to the model.

Log-likelihood of a text, in windows of one context length, through the same rows that decoding
uses.
"""

from __future__ import annotations

import argparse
import gzip
import math
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from bench.report import write_report
from foredraft.config import EngineConfig, usable_cores
from foredraft.engine.runner import ModelRunner, SequenceRows
from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.models.resolve import resolve_model

_ROWS = 64


def main(arguments: list[str]) -> int:
    args = _parser().parse_args(arguments)
    model = resolve_model(args.model)
    raw = args.prompts.read_bytes()
    text = (gzip.decompress(raw) if args.prompts.suffix == ".gz" else raw).decode("utf-8")
    tokens: list[int] = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    windows = [
        tokens[start : start + args.window]
        for start in range(0, min(len(tokens), args.limit * args.window), args.window)
    ]
    results = {}
    for dtype in args.dtypes.split(","):
        settings = EngineConfig(model, dtype=dtype, threads=usable_cores())
        runner = ModelRunner.load(settings)
        loss = sum(_loss(runner, window) for window in windows)
        count = sum(len(window) - 1 for window in windows)
        results[dtype] = round(math.exp(loss / count), 4)
        sys.stdout.write(f"{dtype.ljust(10)} perplexity {results[dtype]} over {count} tokens\n")
    content = {"text": args.prompts.name, "tokens": count, "perplexity": results}
    write_report(args.json, "perplexity", arguments, content)
    return 0


def _loss(runner: ModelRunner, tokens: list[int]) -> float:
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
    parser.add_argument("--limit", type=int, default=8, metavar="N", help="windows")
    parser.add_argument("--window", type=int, default=512, help="tokens per window")
    parser.add_argument("--dtypes", default="float32,float16,bfloat16")
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="DIR|ID")
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser
