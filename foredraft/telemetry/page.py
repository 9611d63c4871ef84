"""A timeline as one HTML page that needs nothing else."""

from __future__ import annotations

import math
from importlib.resources import files

import jinja2

from foredraft.telemetry import timeline as parts
from foredraft.telemetry.drawing import describe, milliseconds, percent
from foredraft.telemetry.timeline import PARTS, Timeline

_FEWEST_TICKS = 4
_COLORS = {
    parts.DRAFT: "#8e6bbf",
    parts.GATEWAY: "#777",
    parts.HOP: "#c9a227",
    parts.PREFILL: "#2a9d8f",
    parts.HELD: "#e07a3f",
    parts.VERIFY: "#2f6db5",
    parts.OTHERS: "#999",
    parts.IDLE: "#c94f4f",
    parts.LOST: "#222",
    parts.UNTOLD: "#b08968",
}
_MEANINGS = {
    parts.DRAFT: "the drafter worked, for all whom it served then",
    parts.GATEWAY: "checks before, and text after, what the target did",
    parts.HOP: "messages between the processes",
    parts.PREFILL: "the target read the prompt",
    parts.HELD: "a step waited for guesses",
    parts.VERIFY: "steps of the target",
    parts.OTHERS: "the target worked for other requests, or for other choices of this one",
    parts.IDLE: "the target worked for nobody, or took messages",
    parts.LOST: "no target had the request: one was lost, and the next one not there yet",
    parts.UNTOLD: "a target that was killed could not tell what it did: prompt, others, messages",
}


def render_page(timeline: Timeline) -> str:
    source = files("foredraft.telemetry").joinpath("page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source).render(
        timeline=timeline,
        lines=describe(timeline),
        parts=PARTS,
        ticks=ticks(timeline.seconds),
        colors=_COLORS,
        meanings=_MEANINGS,
        ms=milliseconds,
        percent=percent,
    )


def ticks(seconds: float) -> list[float]:
    """Round moments for an axis, four to ten of them; none where no time has passed."""
    if seconds <= 0:
        return []
    step = 10.0 ** math.floor(math.log10(seconds / _FEWEST_TICKS))
    step *= next(factor for factor in (5, 2, 1) if factor * step * _FEWEST_TICKS <= seconds)
    return [number * step for number in range(math.ceil(seconds / step))]
