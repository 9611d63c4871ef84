"""A timeline as one HTML page that needs nothing else."""

from __future__ import annotations

from importlib.resources import files

import jinja2

from foredraft.telemetry.drawing import describe, milliseconds, percent
from foredraft.telemetry.timeline import PARTS, Timeline


def render_page(timeline: Timeline) -> str:
    source = files("foredraft.telemetry").joinpath("page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source).render(
        timeline=timeline,
        lines=describe(timeline),
        parts=PARTS,
        ms=milliseconds,
        percent=percent,
    )
