"""``foredraft bench drafts``: how much of each workload each way of guessing gets right.

Answers are recorded once, without guesses (--answers; what the file has is not asked again), or
are those that the files hold (--reference). Then every way of guessing is replayed against them
under every budget of nodes, with the services' own drafter, trees, selection and ends: tokens
per step are exact, at any temperature, because no guess changes a token. Tokens/s are modelled:
a step of the target takes step-ms + row-ms x rows, and every pass of the draft model pass-ms
(measured, unless given); several answers are played at once and share steps and passes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cells import DRAFTS, PLAIN, Cell, cells_of
from bench.draft_options import read_options
from bench.draft_report import row, table
from bench.live import play_live, record
from bench.questions import Asker, Settings
from bench.recorded import AnswerFile, Place, Recorded
from bench.replay import Cost, Replay
from bench.report import check_output, write_report
from bench.step_model import StepModel
from bench.workloads import Row, find_files, read_rows
from draft_service.identity import mismatch, read_target
from foredraft.cli.faults import CommandError
from foredraft.cli.options import find_models
from foredraft.config import EngineConfig, StackConfig
from foredraft.engine.model_config import UnsupportedModel
from foredraft.params import Schedule
from foredraft.wire.messages import ModelInfo

if TYPE_CHECKING:
    from bench.reader import Reader
    from draft_service.engine.draft_engine import DraftEngine

_LIVE_COLUMNS = (
    "workload", "group", "temperature", "draft", "nodes", "answers", "tokens_per_step",
    "replayed_tokens_per_step", "verified_per_step", "tokens_per_s", "same_ids",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that a measurement needs. ``left_out``: rows that outgrow the context."""

    args: argparse.Namespace
    model: Path
    draft: Path | None
    target: ModelInfo
    step: StepModel
    answers: dict[Place, list[Recorded]]
    left_out: int

    @property
    def stack(self) -> StackConfig:
        """Serial: drafts are complete before a step, as they are in a replay."""
        return StackConfig(
            grpc_host="127.0.0.1",
            grpc_port=0,
            model=self.model,
            draft=self.draft,
            dtype=self.args.dtype,
            schedule=Schedule.SERIAL,
            log_level="error",
        )


def main(arguments: list[str]) -> int:
    """Measure, print and write.

    Raises:
        InvalidField: an option cannot be used.
        CommandError: a model cannot be had or run, or the stack ended.
    """
    args = read_options(arguments, __doc__)
    check_output(args.json)
    bench = _prepare(args)
    content: dict[str, Any] = {
        "target": bench.target.model_id,
        "draft": None if bench.draft is None else bench.draft.name,
        "answers": "reference" if args.reference else "recorded",
        "left_out": bench.left_out,
        "at_once": args.at_once,
        "step_ms": args.step_ms,
        "row_ms": args.row_ms,
        "pass_ms": args.pass_ms,
    }
    stages: list[tuple[str, list[Cell], Cost]] = [
        ("cells", _cells(args), _flat),
        ("thresholds", _thresholds(args), bench.step),
    ]
    for name, cells, cost in stages:
        content[name] = rows = []
        for found in _replays(bench, cells, cost):
            rows.append(found)
            write_report(args.json, "drafts", arguments, content)  # the rest may take hours
        if rows:
            sys.stdout.write(table(rows) + "\n")
    write_report(args.json, "drafts", arguments, content)
    if args.live:
        content["live"] = _live(bench, content["cells"])
        sys.stdout.write(table(content["live"], _LIVE_COLUMNS) + "\n")
        write_report(args.json, "drafts", arguments, content)
    return 0


def _prepare(args: argparse.Namespace) -> Bench:
    rows = read_rows(args.workload or find_files(args.data, args.only), args.limit)
    model, draft = find_models(args.model, args.draft)
    try:
        target = read_target(model)
        asker = Asker(model, Settings(target, args.max_tokens, args.seed))
    except UnsupportedModel as error:
        raise CommandError(str(error)) from error
    step = StepModel(args.step_ms, args.row_ms, args.pass_ms)
    bench = Bench(args, model, draft, target, step, {}, 0)
    answers = asker.references(rows) if args.reference else _recorded(bench, asker, rows)
    if not answers:
        raise CommandError(f"no prompt fits the context of {target.context_length} tokens")
    for answer in answers:
        bench.answers.setdefault(answer.question.place, []).append(answer)
    fitting = len(answers) // (1 if args.reference else len(args.temperatures))
    return replace(bench, left_out=len(rows) - fitting)


def _recorded(bench: Bench, asker: Asker, rows: Sequence[Row]) -> list[Recorded]:
    """What the file has, and what the services say to the rest."""
    questions = asker.questions(rows, bench.args.temperatures)
    file = AnswerFile(bench.args.answers)
    missing = file.missing(questions)
    if missing:
        asyncio.run(record(bench.stack, missing, file, bench.args.ask_at_once))
    return file.of(questions)


def _load_draft(bench: Bench) -> DraftEngine | None:
    """With one thread, as the draft service has it."""
    if bench.draft is None:
        return None
    from draft_service.engine.load import load_engine

    try:
        reason = mismatch(bench.draft, bench.target)
        if reason is not None:
            raise CommandError(reason)
        return load_engine(EngineConfig(bench.draft, dtype=bench.args.dtype), bench.target)
    except UnsupportedModel as error:
        raise CommandError(f"{bench.draft.name}: {error}") from error


def _replays(bench: Bench, cells: Sequence[Cell], cost: Cost) -> Iterator[dict[str, Any]]:
    """Rows of the report, as they are found."""
    if not cells:
        return
    if bench.args.jobs == 1:
        yield from _rows(bench, cells, cost)
    else:
        # Spawned: a process that is forked while torch runs threads may never end.
        with ProcessPoolExecutor(bench.args.jobs, get_context("spawn")) as pool:
            parts = [replace(bench, answers={place: a}) for place, a in bench.answers.items()]
            for asked in [pool.submit(_all_rows, part, cells, cost) for part in parts]:
                yield from asked.result()
    sys.stderr.write("\n")


def _all_rows(bench: Bench, cells: Sequence[Cell], cost: Cost) -> list[dict[str, Any]]:
    return list(_rows(bench, cells, cost))


def _rows(bench: Bench, cells: Sequence[Cell], cost: Cost) -> Iterator[dict[str, Any]]:
    """Every cell at every place, one after the other."""
    engine, at_once = _load_draft(bench), bench.args.at_once
    for place, answers in bench.answers.items():
        plain = Replay(Cell(PLAIN, 1), bench.target, at_once, cost).play(answers)
        for cell in cells:
            model = _model(bench, engine, cell)
            replay = Replay(cell, bench.target, at_once, cost, model, bench.step)
            yield row(place, cell, replay.play(answers), plain, bench.step)
            sys.stderr.write(".")
            sys.stderr.flush()


def _model(bench: Bench, engine: DraftEngine | None, cell: Cell) -> Reader | None:
    if engine is None or not cell.draft.needs_model:
        return None
    from bench.reader import Reader  # torch: only where a model is served

    return Reader(engine, bench.target)


def _live(bench: Bench, replayed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of real services, each beside its replay; chains are no setting of the services."""
    args = bench.args
    cells = _trees(args, args.min_survival)
    known = {
        (r["workload"], r["group"], r["temperature"], r["draft"], r["nodes"]): r for r in replayed
    }
    rows = []
    for place, played in asyncio.run(play_live(bench.stack, cells, bench.answers)):
        where = asdict(place)
        beside = known[(*where.values(), played.cell.draft.name, played.cell.nodes)]
        replayed_so = {"replayed_tokens_per_step": beside["tokens_per_step"]}
        rows.append(where | played.content() | replayed_so)
    return rows


def _cells(args: argparse.Namespace) -> list[Cell]:
    drafts = [DRAFTS[name] for name in args.drafts]
    return cells_of(drafts, args.nodes, args.min_survival, args.max_depth)


def _thresholds(args: argparse.Namespace) -> list[Cell]:
    return [cell for value in args.thresholds for cell in _trees(args, value)]


def _trees(args: argparse.Namespace, min_survival: float | None) -> list[Cell]:
    drafts = [DRAFTS[name] for name in args.drafts if not DRAFTS[name].chain]
    return cells_of(drafts, args.nodes, min_survival, args.max_depth)


def _flat(rows: int) -> float:
    """Rows are free, so that all guesses of a budget are verified."""
    return 1.0
