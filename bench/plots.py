"""``foredraft bench plots FILE…``: draws what ``foredraft bench drafts|step --json`` has written.

Per report of steps two pictures: their time by their rows, and by context beside what the memory
alone would take. Per report of drafts up to four: tokens per step of every group, acceptance by
depth, how often guesses came true against how likely they were said to be, and modelled speeds by
threshold.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cells import SELF_TUNED
from bench.step.figures import step_figures
from foredraft.cli.faults import CommandError
from foredraft.params import InvalidField

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMATS = ("svg", "png")
_COLUMNS = 3  # panels beside each other
_INCHES = (4.2, 3.2)  # of a panel
_LEAST_SEEN = 20  # guesses; a share of fewer says little and is not drawn

Row = Mapping[str, Any]


def main(arguments: list[str]) -> int:
    """Draw.

    Raises:
        InvalidField: a file holds no such report, or the folder cannot be made.
        CommandError: matplotlib is not installed.
    """
    args = _parser().parse_args(arguments)
    reports = {file: _read(file) for file in args.files}
    try:
        import matplotlib
    except ImportError:
        text = "plots need matplotlib: pip install 'foredraft[train]'"
        raise CommandError(text) from None
    matplotlib.use("agg")  # no screen
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidField("--out", f"a folder, not {args.out}: {error.strerror}") from None
    for file, report in reports.items():
        for name, figure in _figures(report).items():
            picture = args.out / f"{file.stem}_{name}.{args.format}"
            figure.savefig(picture, bbox_inches="tight")
            sys.stdout.write(f"{picture}\n")
    return 0


def _read(file: Path) -> dict[str, Any]:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidField("FILE", f"a report to read: {file}: {error.strerror}") from None
    except ValueError:
        report = None
    if not isinstance(report, dict) or report.get("benchmark") not in ("drafts", "step"):
        allowed = f"what foredraft bench drafts|step --json has written: {file.name} is not"
        raise InvalidField("FILE", allowed)
    return report


def _figures(report: dict[str, Any]) -> dict[str, Figure]:
    if report["benchmark"] == "step":
        return step_figures(report)
    cells = report["cells"]
    widest = [row for row in cells if row["nodes"] == _widest(cells)[row["draft"]]]
    figures = {
        "tokens_per_step": _bars(cells),
        "by_depth": _panels(_grouped(widest, _place), _draw_depths),
        "reliability": _panels(_grouped(widest, _draft), _draw_reliability),
    }
    if thresholds := report.get("thresholds"):  # a report that is being made may lack them
        figures["thresholds"] = _panels(_grouped(thresholds, _place), _draw_thresholds)
    return figures


def _bars(rows: Sequence[Row]) -> Figure:
    """Groups of bars: one group per place, one bar per way of guessing and budget."""
    from matplotlib.figure import Figure

    places = list(_grouped(rows, _place))
    ways = _grouped(rows, _way)
    width = 0.8 / len(ways)
    figure = Figure(figsize=(max(5.0, 0.35 * len(rows)), 4.0))
    axes = figure.subplots()
    for number, (way, mine) in enumerate(ways.items()):
        at = [places.index(_place(row)) + (number + 0.5) * width - 0.4 for row in mine]
        axes.bar(at, [row["tokens_per_step"] for row in mine], width, label=way)
    axes.set_xticks(range(len(places)), places, rotation=30, ha="right")
    axes.axhline(1.0, color="black", linewidth=0.6)  # plain decoding
    axes.set_ylabel("tokens per step")
    axes.legend(fontsize="small", ncols=2)
    return figure


def _draw_depths(axes: Axes, rows: Sequence[Row]) -> None:
    for row in rows:
        for source, counts in row["sources"].items():
            judged = enumerate(zip(counts["verified"], counts["accepted"], strict=True), start=1)
            points = [(depth, a / v) for depth, (v, a) in judged if v >= _LEAST_SEEN]
            _line(axes, points, f"{_way(row)}: {source}")
    axes.set_ylim(0, 1)
    axes.set_xlabel("depth below the root")
    axes.set_ylabel("accepted, parent given")


def _draw_reliability(axes: Axes, rows: Sequence[Row]) -> None:
    """Over all groups of answers together; the diagonal is what it should be."""
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.6)
    pooled: dict[str, list[list[Row]]] = {}
    for row in rows:
        for source, counts in row["sources"].items():
            bins = pooled.setdefault(source, [[] for _ in counts["bins"]])
            for place, more in zip(bins, counts["bins"], strict=True):
                place.append(more)
    for source, bins in pooled.items():
        _line(axes, [point for place in bins if (point := _mean(place))], source)
    axes.set_xlabel("confidence")
    axes.set_ylabel("accepted, parent given")


def _mean(bins: Sequence[Row]) -> tuple[float, float] | None:
    count = sum(each["count"] for each in bins)
    if count < _LEAST_SEEN:
        return None
    predicted = sum(each["predicted"] * each["count"] for each in bins) / count
    return predicted, sum(each["accepted"] * each["count"] for each in bins) / count


def _draw_thresholds(axes: Axes, rows: Sequence[Row]) -> None:
    """Fixed ones as a line, the self-tuned one as a dashed level of the same colour."""
    for way, mine in _grouped(rows, _way).items():
        fixed = [row for row in mine if row["min_survival"] != SELF_TUNED]
        points = [(row["min_survival"], row["modelled_tokens_per_s"]) for row in fixed]
        colour = _line(axes, sorted(points), way)
        for row in mine:
            if row not in fixed:
                axes.axhline(row["modelled_tokens_per_s"], linestyle="--", color=colour)
    thresholds = sorted({r["min_survival"] for r in rows if r["min_survival"] != SELF_TUNED})
    axes.set_xscale("symlog", linthresh=0.01)  # 0 is a threshold, too
    axes.set_xticks(thresholds, [f"{value:g}" for value in thresholds])
    axes.minorticks_off()
    axes.set_xlabel("least survival; dashed: self-tuned")
    axes.set_ylabel("tokens/s, modelled")


def _line(axes: Axes, points: Iterable[tuple[float, float]], label: str) -> Any:
    """Returns its colour."""
    found = list(points)
    (line,) = axes.plot([x for x, _ in found], [y for _, y in found], marker=".", label=label)
    return line.get_color()


def _panels(
    groups: Mapping[str, Sequence[Row]], draw: Callable[[Axes, Sequence[Row]], None]
) -> Figure:
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(groups))
    lines = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(_INCHES[0] * columns, _INCHES[1] * lines), layout="tight")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, (title, rows) in zip(panels, groups.items(), strict=False):
        draw(axes, rows)
        axes.set_title(title, fontsize="medium")
        axes.legend(fontsize="x-small")
    for axes in panels[len(groups) :]:
        axes.set_axis_off()
    return figure


def _grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _widest(rows: Iterable[Row]) -> dict[str, int]:
    """The largest budget of every way of guessing."""
    return {draft: max(r["nodes"] for r in mine) for draft, mine in _grouped(rows, _draft).items()}


def _draft(row: Row) -> str:
    return str(row["draft"])


def _place(row: Row) -> str:
    name = "" if row["group"] == row["workload"] else f" {row['group']}"
    return f"{row['workload']}{name}, T={row['temperature']:g}"


def _way(row: Row) -> str:
    """A chain's name tells its length."""
    draft = _draft(row)
    return draft if draft.startswith("chain") else f"{draft} {row['nodes']}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foredraft bench plots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="default: here")
    parser.add_argument("--format", choices=_FORMATS, default="svg")
    return parser
