"""What came out of a case, and what of it falls short of what was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.kernels.case import OURS, Case, Findings


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    Attributes:
        times: median microseconds of one launch by contestant, without those that could not run.
        faults: why some could not.
    """

    case: Case
    findings: Findings
    times: Mapping[str, float]
    faults: Mapping[str, str]

    @property
    def gigabytes_per_s(self) -> float:
        return self.case.moved_bytes / self.times[OURS] / 1e3

    def faster_than(self, other: str) -> float:
        """How many times as fast ours is."""
        return self.times[other] / self.times[OURS]


def broken(outcome: Outcome) -> list[str]:
    """What must hold whatever the time, and does not."""
    failed = [name for name, found in outcome.findings.items() if found is False]
    fault = outcome.faults.get(OURS)
    return failed if fault is None else [*failed, f"it does not run: {fault}"]


def missed(outcome: Outcome, outcomes: Sequence[Outcome], copy_gb_s: float) -> list[str]:
    """Which goals of a case were not reached, in words; nothing is said of what did not run."""
    case = outcome.case
    if OURS not in outcome.times:
        return []
    words = []
    for other, wanted in case.goals.items():
        if other in outcome.times and (ratio := outcome.faster_than(other)) < wanted:
            words.append(f"{ratio:.2f} of {wanted:.2f} x {other}")
    share = outcome.gigabytes_per_s / copy_gb_s
    if share < case.of_copy:
        words.append(f"{share:.0%} of {case.of_copy:.0%} of copy bandwidth")
    if 0 < case.at_most_us < outcome.times[OURS]:
        words.append(f"{outcome.times[OURS]:.1f} us, at most {case.at_most_us:.1f}")
    for shape, limit in case.flat.items():
        base = _time_of(case.kernel, shape, outcomes)
        if base is not None and (ratio := outcome.times[OURS] / base) > limit:
            words.append(f"{ratio:.2f} x the time of {shape}, at most {limit:.2f}")
    return words


def as_json(outcome: Outcome, outcomes: Sequence[Outcome], copy_gb_s: float) -> dict[str, Any]:
    case = outcome.case
    row: dict[str, Any] = {
        "kernel": case.kernel,
        "shape": case.shape,
        "moved_bytes": case.moved_bytes,
        "us": {name: round(time, 3) for name, time in outcome.times.items()},
        "findings": dict(outcome.findings),
        "faults": dict(outcome.faults),
        "broken": broken(outcome),
        "missed": missed(outcome, outcomes, copy_gb_s),
    }
    if OURS in outcome.times:
        row["of_copy"] = round(outcome.gigabytes_per_s / copy_gb_s, 3)
    return row


def line(row: Mapping[str, Any]) -> str:
    """A row of `as_json` for the terminal."""
    times = row["us"]
    parts = [f"{row['kernel']}, {row['shape']}:"]
    if OURS in times:
        parts.append(f"{times[OURS]:.2f} us, {row['of_copy']:.0%} of copy;")
        others = (name for name in times if name != OURS)
        parts += [f"{times[name] / times[OURS]:.2f} x {name};" for name in others]
    parts += [
        f"{name} {value:.2g};" for name, value in row["findings"].items() if value is not True
    ]
    parts += [f"BROKEN: {what};" for what in row["broken"]]
    parts += [f"missed: {what};" for what in row["missed"]]
    return " ".join(parts).rstrip(";")


def _time_of(kernel: str, shape: str, outcomes: Sequence[Outcome]) -> float | None:
    for outcome in outcomes:
        if (outcome.case.kernel, outcome.case.shape) == (kernel, shape):
            return outcome.times.get(OURS)
    return None
