"""``foredraft bench extension``: how long one pass of the draft model takes, from request to nodes.

So many sequences are open at a drafter. In every round each of them is told one more token, and
the model looks at all their new roots in one pass. Four times are taken, one inside the other:
from the commits to the nodes; from the request for a pass to its nodes; the engine's part of that;
and the pass on the device alone, which is made again for it. Without --draft the weights are
random and have the shape of a draft that was pruned out of the target.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from bench.random_draft import make_random_draft
from bench.report import check_output, write_report
from bench.values import several
from draft_service.drafter import Drafter
from draft_service.engine.draft_engine import Extension, Guesses, ModelEngine
from draft_service.engine.load import load_model_engine
from draft_service.identity import mismatch, read_target
from draft_service.model_drafter import ModelDrafter
from foredraft.cli.faults import CommandError
from foredraft.cli.options import DRAFT_NAMES, find_draft, find_model, positive_int
from foredraft.config import DTYPES, EngineConfig
from foredraft.engine.model_config import UnsupportedModel
from foredraft.models.catalog import DEFAULT_MODEL
from foredraft.params import InvalidField, SamplingParams, Speculation, check_params
from foredraft.wire.messages import (
    Commit,
    Commits,
    DraftBudget,
    Limits,
    ModelInfo,
    OpenSequence,
    OpenSequences,
)

_STREAM = 1
_MOST_SEQUENCES = 64
_WARM_UP = 8  # rounds that do not count
_TIMES = ("turn_ms", "extension_ms", "engine_ms", "device_ms")


def main(arguments: list[str]) -> int:
    """Measure, print and write.

    Raises:
        InvalidField: an option cannot be used.
        CommandError: a model cannot be had or run.
    """
    args = _parser().parse_args(arguments)
    _check(args)
    model, given = find_model(args.model), find_draft(args.draft, args.model)
    try:
        target = read_target(model)
        with _directory(args, model, given) as draft:
            reason = mismatch(draft, target)
            if reason is not None:
                raise CommandError(reason)
            engine = _load(args, draft, target)
            _check_room(args, engine)
            rows = [_measure(args, engine, target, count) for count in args.sequences]
    except UnsupportedModel as error:
        raise CommandError(str(error)) from error
    content: dict[str, Any] = {
        "draft": "random weights" if given is None else given.name,
        "device": args.device,
        "context": args.context,
        "temperature": args.temperature,
        "rounds": args.rounds,
        "rows": rows,
    }
    sys.stdout.write(_table(rows) + "\n")
    write_report(args.json, "extension", arguments, content)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raises InvalidField for what argparse cannot know."""
    check_output(args.json)
    check_params(SamplingParams(temperature=args.temperature))
    if max(args.sequences) > _MOST_SEQUENCES:
        raise InvalidField("--sequences", f"at most {_MOST_SEQUENCES}, which one pass has rows for")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise InvalidField("--device", "auto or cpu, as there is no GPU")


@contextlib.contextmanager
def _directory(args: argparse.Namespace, target: Path, draft: Path | None) -> Iterator[Path]:
    if draft is not None:
        yield draft
        return
    with tempfile.TemporaryDirectory(prefix="foredraft-extension-") as made:
        yield make_random_draft(target, Path(made), args.layers, args.output_ids)


def _load(args: argparse.Namespace, draft: Path, target: ModelInfo) -> ModelEngine:
    engine = load_model_engine(EngineConfig(draft, dtype=args.dtype, device=args.device), target)
    engine.warm_up()
    return engine


def _check_room(args: argparse.Namespace, engine: ModelEngine) -> None:
    most = engine.info.context_length - args.rounds - _WARM_UP - 2
    if args.context > most:
        raise InvalidField("--context", f"at most {most}, as the draft's context and --rounds say")


class _TimedEngine:
    """Notes how long the last extension took, and what it was."""

    def __init__(self, engine: ModelEngine) -> None:
        self._engine = engine
        self.batch: Sequence[Extension] = ()
        self.milliseconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def extend(self, batch: Sequence[Extension], meanwhile: Callable[[], None]) -> Guesses:
        self.batch = batch
        started = perf_counter()
        guesses = self._engine.extend(batch, meanwhile)
        self.milliseconds = _since(started)
        return guesses


def _measure(
    args: argparse.Namespace, engine: ModelEngine, target: ModelInfo, count: int
) -> dict[str, Any]:
    """Medians and the least over all rounds, in milliseconds, for so many sequences."""
    timed, source = _TimedEngine(engine), random.Random(0)
    # By a clock that stands still rows are free, so that one pass looks at all roots.
    model = ModelDrafter(timed, target)
    drafter = Drafter(target, Limits(count, 64, 32), model, clock=lambda: 0.0)
    drafter.handle(_STREAM, DraftBudget(64, max_depth=1, min_survival=0.0))
    vocab = min(target.vocab_size, engine.info.vocab_size)
    prompts = [tuple(source.choices(range(vocab), k=args.context)) for _ in range(count)]
    params = [
        SamplingParams(max_tokens=1 << 30, temperature=args.temperature, seed=n, ignore_eos=True)
        for n in range(count)
    ]
    drafter.handle(
        _STREAM,
        OpenSequences(
            tuple(
                OpenSequence(n, 0, prompts[n], params[n], speculation=Speculation.MODEL)
                for n in range(count)
            )
        ),
    )
    while drafter.busy:
        drafter.draft()
    rounds = [
        _round(drafter, timed, args.context + number, source.choices(range(vocab), k=count))
        for number in range(_WARM_UP + args.rounds)
    ][_WARM_UP:]
    drafter.end_stream(_STREAM)
    found: dict[str, Any] = {"sequences": count}
    for name, column in zip(_TIMES, zip(*rounds, strict=True), strict=True):
        found[name] = {"p50": round(statistics.median(column), 3), "least": round(min(column), 3)}
    return found


def _round(
    drafter: Drafter, timed: _TimedEngine, position: int, tokens: Sequence[int]
) -> tuple[float, float, float, float]:
    """Every sequence gets a token, and guesses for the next."""
    commits = tuple(Commit(n, 0, position, (token,)) for n, token in enumerate(tokens))
    came = perf_counter()
    drafter.handle(_STREAM, Commits(commits))
    drafter.draft()  # what is left of the tree, and where the model shall look
    asked = perf_counter()
    answers = drafter.draft()
    extension, turn = _since(asked), _since(came)
    assert answers and not drafter.busy and len(timed.batch) == len(tokens)
    return turn, extension, timed.milliseconds, timed.device_ms(timed.batch)


def _since(moment: float) -> float:
    return (perf_counter() - moment) * 1000


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """p50 and, in brackets, the least."""
    heads = ["sequences", "commit to nodes", "request to nodes", "engine", "device"]
    lines = ["  ".join(head.rjust(18) for head in heads) + "   (ms)"]
    for row in rows:
        cells = [str(row["sequences"])]
        cells += [f"{row[name]['p50']:.3f} ({row[name]['least']:.3f})" for name in _TIMES]
        lines.append("  ".join(cell.rjust(18) for cell in cells))
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench extension",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, metavar="DIR|ID", help="the target")
    add("--draft", default="none", metavar=DRAFT_NAMES, help="none: random weights")
    add("--layers", type=positive_int, default=4, metavar="N", help="of random weights")
    add("--output-ids", type=positive_int, default=16_384, metavar="N", help="of random weights")
    add("--sequences", type=several(positive_int), default=[1, 8, 32], metavar="N,…")
    add("--context", type=positive_int, default=256, metavar="N", help="tokens of a prompt")
    add("--temperature", type=float, default=0.0)
    add("--rounds", type=positive_int, default=200, metavar="N")
    add("--dtype", choices=DTYPES, default="auto")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--json", type=Path, metavar="OUT")
    return parser
