"""``foredraft bench tables``: remakes the README's tables from bench/results/*.json."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.cells import SELF_TUNED
from bench.compare import PLAIN
from bench.kernels.case import OURS
from bench.peer import PEERS

_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main(arguments: list[str]) -> int:
    args = _parser().parse_args(arguments)
    reports = [json.loads(file.read_text("utf-8")) for file in sorted(args.results.glob("*.json"))]
    readme = args.readme.read_text(encoding="utf-8")
    before, _, rest = readme.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    args.readme.write_text(f"{before}{_BEGIN}\n{_tables(reports)}\n{_END}{after}", encoding="utf-8")
    sys.stdout.write(f"{args.readme} holds {len(reports)} results\n")
    return 0


def _tables(reports: list[dict[str, Any]]) -> str:
    if not reports:
        return "Nothing was measured yet."
    by_machine: dict[str, list[dict[str, Any]]] = {}
    for report in reports:
        by_machine.setdefault(_machine(report), []).append(report)
    tables = (f"{machine}\n\n{_table(mine)}" for machine, mine in by_machine.items())
    return "\n\n".join([*tables, *_same_ids(reports)])


def _table(reports: list[dict[str, Any]]) -> str:
    lines = ["| measured | result | command |", "| --- | --- | --- |"]
    for report in reports:
        lines += [
            f"| {what} | {result} | `{report['command']}` |" for what, result in _rows(report)
        ]
    return "\n".join(lines)


def _machine(report: dict[str, Any]) -> str:
    machine, versions = report["machine"], report["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    gpu = f"; {machine['gpu']}" if "gpu" in machine else ""
    return f"{machine['processor']}, {machine['cores']} cores{gpu}; {packages}."


def _same_ids(reports: list[dict[str, Any]]) -> list[str]:
    """How many of our own answers with guesses are those of plain decoding; none, no sentence."""
    same = answers = 0
    for report in reports:
        if report["benchmark"] != "compare":
            continue
        for name, row in report["systems"].items():
            if name != PLAIN and not name.startswith(PEERS):
                same += row["same_ids_as_plain"]
                answers += report["answers"]
    if not answers:
        return []
    return [
        f"Medians over the answers. {same} of our {answers} answers with guesses have the same "
        "ids as plain decoding."
    ]


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    match report["benchmark"]:
        case "wire":
            size = f"{report['sequences']} x {report['nodes_per_sequence']} nodes"
            times = f"p50 {report['p50_ms']} ms, p99 {report['p99_ms']} ms"
            return [(f"draft -> gateway -> verify, {size}", times)]
        case "perplexity":
            return [
                (f"perplexity in {dtype}, {report['tokens']} tokens", str(value))
                for dtype, value in report["perplexity"].items()
            ]
        case "policy":
            return _policies(report)
        case "gateway":
            return [(_load(report, door), _carried(row)) for door, row in report["doors"].items()]
        case "survival":
            return _survived(report)
        case "drafts":
            return _drafted(report)
        case "kernels":
            return [
                (f"{case['kernel']}, {case['shape']}", _kernel(case)) for case in report["cases"]
            ]
        case "step":
            return _stepped(report)
        case "prompts":
            return [_prompted(report)]
        case "extension":
            return [_extended(report)]
        case _:
            return [
                (f"{name}, {report['prompts'].split('.')[0]}", _speed(row))
                for name, row in report["systems"].items()
            ]


def _load(report: dict[str, Any], door: str) -> str:
    return (
        f"one gateway, {door}, {report['clients']} streaming clients, "
        f"steps of {report['step_ms']} ms without guesses"
    )


def _carried(row: dict[str, Any]) -> str:
    found = f"{row['tokens_per_s']:.0f} tokens/s, traced {row['traced_ratio']:.3f}x"
    if not row["forward_us"]:
        return found
    off = row["forward_us"]
    return f"{found}; passes off by {off['off_p50']:.0f} us (p50), {off['off_p99']:.0f} us (p99)"


def _survived(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Medians and, in brackets, the worst."""
    work = f"{report['requests']} answers, steps of {report['step_ms']} ms"
    rows = [
        (
            f"{name}, {work}",
            ", ".join(f"{what} {_seconds(spread)}" for what, spread in stroke["seconds"].items())
            + f"; {stroke['failed']} failed, {stroke['differing']} with other ids",
        )
        for name, stroke in report["strokes"].items()
    ]
    cancels = report["cancels"]
    if cancels["free_again_s"]:
        free = f"all is free again {_seconds(cancels['free_again_s'])}"
        rows.append((f"{cancels['given_up']} requests given up at random stages", free))
    return rows


def _seconds(spread: dict[str, float]) -> str:
    return f"after {spread['median']:.2f} s ({spread['worst']:.2f} s)"


def _drafted(report: dict[str, Any]) -> list[tuple[str, str]]:
    """One row per group of answers: every way of guessing, each with all its budgets.

    A report in which costs decide the threshold, too, is about that alone.
    """
    tuned = _tuned(report)
    if tuned:
        return tuned
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for cell in report["cells"]:
        what = f"{report['answers']} answers, {cell['workload']} {cell['group']}"
        drafts = groups.setdefault(f"{what}, T = {cell['temperature']:g}", {})
        drafts.setdefault(cell["draft"], []).append(cell)
    return [
        (what, "; ".join(f"{draft} {_per_step(cells)}" for draft, cells in drafts.items()))
        for what, drafts in groups.items()
    ]


def _tuned(report: dict[str, Any]) -> list[tuple[str, str]]:
    """One row per group and number of nodes: the threshold that costs decide beside the others."""
    places: dict[str, list[dict[str, Any]]] = {}
    for cell in report.get("thresholds", ()):  # a report that is being made may lack them
        what = f"{cell['workload']} {cell['group']}, T = {cell['temperature']:g}, {cell['nodes']}"
        costs = f"{report['step_ms']:g} + {report['row_ms']:g} ms a row"
        where = f"{what} nodes, steps of {costs}, {report['at_once']} at once"
        places.setdefault(where, []).append(cell)
    return [
        (f"modelled speed, {where}", _beside(cells))
        for where, cells in places.items()
        if {SELF_TUNED} < {cell["min_survival"] for cell in cells}
    ]


def _beside(cells: list[dict[str, Any]]) -> str:
    """Tokens/s of every way of guessing under its own threshold and the best fixed one."""
    speeds: dict[str, dict[float | str, float]] = {}
    for cell in cells:
        speeds.setdefault(cell["draft"], {})[cell["min_survival"]] = cell["modelled_tokens_per_s"]
    plain = f"plain {cells[0]['modelled_plain_tokens_per_s']:.1f} tokens/s"
    return "; ".join([plain, *(f"{draft} {_best(by)}" for draft, by in speeds.items())])


def _best(by_threshold: dict[float | str, float]) -> str:
    own = by_threshold.pop(SELF_TUNED)
    best = max(by_threshold, key=by_threshold.__getitem__)
    return f"{own:.1f} (fixed at {best}: {by_threshold[best]:.1f})"


def _per_step(cells: list[dict[str, Any]]) -> str:
    steps = _listed(f"{cell['tokens_per_step']:.2f}" for cell in cells)
    nodes = _listed(str(cell["nodes"]) for cell in cells)
    return f"{steps} tokens/step ({nodes} nodes)"


def _extended(report: dict[str, Any]) -> tuple[str, str]:
    """Medians for every number of sequences."""
    rows = report["rows"]
    count = _listed(str(row["sequences"]) for row in rows)
    what = f"one pass of a draft ({report['draft']}), context {report['context']}, {count} at once"
    times = [
        f"{name} {_listed(str(row[key]['p50']) for row in rows)} ms"
        for name, key in (("from request to nodes", "extension_ms"), ("device", "device_ms"))
    ]
    return what, ", ".join(times)


def _stepped(report: dict[str, Any]) -> list[tuple[str, str]]:
    """One row per number of sequences and context, each with every number of guesses."""
    target = f"{report['layers']} layers of {report['hidden']} in {report['dtype']}"
    places: dict[str, list[dict[str, Any]]] = {}
    for row in report["steps"]:
        if row["fits"]:
            beside = f"{row['sequences']} sequences, {row['context']} committed tokens each"
            places.setdefault(f"a step of {target}, {beside}", []).append(row)
    return [(_guesses(place, rows), _step_times(rows)) for place, rows in places.items()]


def _guesses(place: str, rows: list[dict[str, Any]]) -> str:
    return f"{place}; {_listed(str(row['nodes']) for row in rows)} guesses in all"


def _step_times(rows: list[dict[str, Any]]) -> str:
    times = _listed(f"{row['ms']:.2f}" for row in rows)
    shares = _listed(f"{row['of_floor']:.0%}" for row in rows)
    return f"{times} ms ({shares} of the memory's speed)"


def _prompted(report: dict[str, Any]) -> tuple[str, str]:
    firsts = report["first_token_ms"]
    target = f"{report['layers']} layers of {report['hidden']} in {report['dtype']}"
    steps = (
        f"then steps of {report['step_ms']:.2f} ms, "
        f"at most {report['longest_gap_steps']:.2f} of them without a token"
    )
    return (
        f"{report['sequences']} prompts of {report['prompt']} tokens at once, {target}",
        f"first tokens after {firsts[0] / 1000:.2f} to {firsts[-1] / 1000:.2f} s, {steps}",
    )


def _policies(report: dict[str, Any]) -> list[tuple[str, str]]:
    """One row per pair of models: all schedules, each with every number of requests."""
    cases: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for speed in report["speeds"]:
        schedules = cases.setdefault(_pair(speed["case"]), {})
        schedules.setdefault(speed["schedule"], []).append(speed)
    rows = []
    for pair, schedules in cases.items():
        requests = _listed(str(speed["requests"]) for speed in next(iter(schedules.values())))
        found = (_rates(schedule, speeds) for schedule, speeds in schedules.items())
        rows.append((f"{pair}; {requests} at once", "; ".join(found)))
    return rows


def _pair(case: dict[str, float]) -> str:
    return (
        f"stand-ins: step {case['step_ms']} ms, draft {case['draft_ms']} ms, "
        f"best guess right {case['acceptance']:.1%}"
    )


def _rates(schedule: str, speeds: list[dict[str, Any]]) -> str:
    rates = _listed(f"{speed['speculating']:.0f}" for speed in speeds)
    ratios = _listed(f"{speed['ratio']:.2f}" for speed in speeds)
    return f"{schedule} {rates} tokens/s ({ratios} x plain)"


def _kernel(case: dict[str, Any]) -> str:
    """Its time, beside copies of as many bytes and beside its controls."""
    times = dict(case["us"])
    if OURS not in times:
        return "does not run"
    ours = times.pop(OURS)
    ratios = [f"{time / ours:.2f} x {name}" for name, time in times.items()]
    beside = ", ".join([f"{case['of_copy']:.0%} of copy bandwidth", *ratios])
    wrong = f"; wrong: {', '.join(case['broken'])}" if case["broken"] else ""
    return f"{ours:.1f} us ({beside}){wrong}"


def _listed(values: Iterable[str]) -> str:
    return " / ".join(values)


def _speed(row: dict[str, float]) -> str:
    steps = f", {row['tokens_per_step']} tokens/step" if row["tokens_per_step"] > 1.05 else ""
    total = f"{row['decode_ratio_to_plain']}x plain, {row['total_ratio_to_plain']}x over all"
    ratio = "" if row["ratio_to_plain"] == 1.0 else f" ({total}{steps})"
    return f"{row['decode_tokens_per_s']} tokens/s decoding{ratio}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="foredraft bench tables", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("bench/results"))
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    return parser
