"""Pictures of what ``foredraft bench step --json`` has written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (6.4, 4.2)

Row = Mapping[str, Any]


def step_figures(report: Mapping[str, Any]) -> dict[str, Figure]:
    """By name: how flat steps are in their rows, and what they take by context beside the floor."""
    rows = [row for row in report["steps"] if row["fits"]]
    return {"flatness": _drawn(_draw_flatness, rows), "context": _drawn(_draw_contexts, rows)}


def flatness(rows: Iterable[Row]) -> dict[tuple[int, int], list[tuple[int, float]]]:
    """By (sequences, context): rows of a step, and its time as a multiple of the plain step's."""
    curves: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        curves.setdefault((row["sequences"], row["context"]), []).append(row)
    found = {}
    for place, mine in curves.items():
        plain = [row["ms"] for row in mine if row["nodes"] == 0]
        if plain:
            found[place] = [(row["sequences"] + row["nodes"], row["ms"] / plain[0]) for row in mine]
    return found


def _draw_flatness(axes: Axes, rows: Sequence[Row]) -> None:
    for (sequences, context), points in flatness(rows).items():
        axes.plot(*zip(*points, strict=True), marker=".", label=f"{sequences} at {context}")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("rows of a step")
    axes.set_ylabel("time, plain step = 1")


def _draw_contexts(axes: Axes, rows: Sequence[Row]) -> None:
    """Plain steps and their floors, the latter dashed, in the same colour."""
    plain = [row for row in rows if row["nodes"] == 0]
    for number, sequences in enumerate(sorted({row["sequences"] for row in plain})):
        mine = sorted(
            (row["context"], row["ms"], row["floor_ms"])
            for row in plain
            if row["sequences"] == sequences
        )
        contexts, times, floors = zip(*mine, strict=True)
        axes.plot(contexts, times, f"C{number}.-", label=f"{sequences} sequences")
        axes.plot(contexts, floors, f"C{number}--")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("committed tokens of each sequence")
    axes.set_ylabel("milliseconds of a plain step; dashed: of the memory alone")


def _drawn(draw: Any, rows: Sequence[Row]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES)
    axes = figure.subplots()
    draw(axes, rows)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    return figure
