"""A picture of a training run: agreement and loss over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from draft_service.training.progress_log import Line


def draw(lines: Sequence[Line], file: Path) -> None:
    """Write a PNG. Raises ModuleNotFoundError where matplotlib is not installed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    seconds = [line.seconds for line in lines]
    shares = {
        "best guess": [line.agreement.top1 for line in lines],
        "two best": [line.agreement.top2 for line in lines],
        "four best": [line.agreement.top4 for line in lines],
        "best at temperature 1": [line.agreement.coupled1 for line in lines],
    }
    for name, values in shares.items():
        upper.plot(seconds, values, label=name)
    upper.set_ylabel("agreement with the target")
    upper.set_ylim(0.0, 1.0)
    upper.grid(alpha=0.3)
    upper.legend(loc="lower right")
    learned = [(line.seconds, line.loss) for line in lines if line.loss is not None]
    lower.plot(*zip(*learned, strict=True) if learned else ((), ()), color="tab:red")
    lower.set_ylabel("loss (nats per token)")
    lower.set_xlabel("seconds of training")
    lower.grid(alpha=0.3)
    figure.savefig(file, dpi=110, format="png")
