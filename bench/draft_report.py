"""What replays came to, as a report's rows and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.cells import SELF_TUNED, Cell
from bench.recorded import Place
from bench.replay import Tally
from bench.step_model import StepModel
from foredraft.wire.messages import Source

COLUMNS = {
    "workload": "workload",
    "group": "group",
    "temperature": "T",
    "draft": "draft",
    "nodes": "nodes",
    "min_survival": "survival",
    "answers": "answers",
    "tokens_per_step": "tokens/step",
    "tokens_per_step_outside_loops": "no loops",
    "loop_tokens": "in loops",
    "verified_per_step": "verified",
    "draft_us_per_step": "us/step",
    "draft_us_per_node": "us/node",
    "modelled_tokens_per_s": "tokens/s",
    "modelled_plain_tokens_per_s": "plain",
}


def row(place: Place, cell: Cell, tally: Tally, plain: Tally, model: StepModel) -> dict[str, Any]:
    """One row of the report; ``plain``: the same answers without guesses."""
    work_us = tally.later.suffix_us + tally.later.model_us
    outside = tally.tokens - tally.loop_tokens, tally.steps - tally.loop_steps
    return {
        **asdict(place),
        "draft": cell.draft.name,
        "nodes": cell.nodes,
        "max_depth": cell.max_depth,
        "min_survival": SELF_TUNED if cell.min_survival is None else cell.min_survival,
        "answers": tally.answers,
        "tokens": tally.tokens,
        "steps": tally.steps,
        "tokens_per_step": _ratio(tally.tokens, tally.steps),
        "loop_tokens": tally.loop_tokens,
        "tokens_per_step_outside_loops": _ratio(*outside),
        "verified_per_step": _ratio(tally.rows - tally.steps, tally.steps),
        "drafted": tally.drafted,
        "draft_us_per_step": _ratio(work_us, tally.steps),
        "draft_us_per_node": _ratio(work_us, tally.drafted),
        "passes_per_round": _ratio(tally.later.passes, tally.rounds),
        "pass_ms": _ratio(tally.later.model_us / 1000, tally.later.passes),
        "opening_ms_per_answer": _ratio(
            (tally.opening.suffix_us + tally.opening.model_us) / 1000, tally.answers
        ),
        "modelled_tokens_per_s": _ratio(1000 * tally.tokens, _total_ms(tally, model)),
        "modelled_plain_tokens_per_s": _ratio(1000 * plain.tokens, _total_ms(plain, model)),
        "sources": {
            source.name.lower(): tally.guesses[source].content()
            for source in Source
            if tally.guesses[source].verified
        },
    }


def _total_ms(tally: Tally, model: StepModel) -> float:
    """All rounds of a replay: the drafter's passes, then the target's step."""
    target_ms = model.step_ms * tally.rounds + model.row_ms * tally.rows
    return target_ms + model.passes_ms(tally.later)


def table(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] = COLUMNS) -> str:
    """Columns that are as wide as what stands in them; numbers to the right."""
    names = list(columns)
    lines = [[COLUMNS.get(name, name) for name in names]]
    lines += [[_text(entry[name]) for name in names] for entry in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    words = [isinstance(rows[0][name], str) if rows else True for name in names]
    aligned = (
        "  ".join(
            cell.ljust(width) if word else cell.rjust(width)
            for cell, width, word in zip(line, widths, words, strict=True)
        )
        for line in lines
    )
    return "\n".join(line.rstrip() for line in aligned)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ratio(part: float, whole: float) -> float:
    """0 of nothing."""
    return round(part / whole, 4) if whole else 0.0
