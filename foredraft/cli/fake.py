"""``--fake-engine``: stand-ins with known times take the place of the models."""

from __future__ import annotations

import argparse

from foredraft.config import FakeEngine
from foredraft.params import Range

_TIME = Range(0.0, 60_000.0, whole=False)
_SHARE = Range(0.0, 1.0, whole=False)
_ACCEPTANCE = 0.754  # of a small trained draft
_FLAG = "--fake-engine"


def add_fake_target_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        _FLAG, metavar="STEP_MS", type=fake_target, help="a stand-in with this step"
    )


def add_fake_draft_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        _FLAG, metavar="DRAFT_MS,TOP1", type=fake_draft, help="a stand-in that is right this often"
    )


def add_fake_stack_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        _FLAG,
        metavar="STEP_MS,DRAFT_MS[,TOP1]",
        type=fake_stack,
        help="no models: stand-ins whose passes take so long, and how often the draft's best guess "
        f"is right (default {_ACCEPTANCE})",
    )


def fake_target(text: str) -> FakeEngine:
    return FakeEngine(*_numbers(text, "STEP_MS", _TIME))


def fake_draft(text: str) -> FakeEngine:
    return FakeEngine(*_numbers(text, "DRAFT_MS,TOP1", _TIME, _SHARE))


def fake_stack(text: str) -> tuple[FakeEngine, FakeEngine]:
    """Target and draft."""
    if text.count(",") == 1:
        text = f"{text},{_ACCEPTANCE}"
    step, draft, share = _numbers(text, "STEP_MS,DRAFT_MS[,TOP1]", _TIME, _TIME, _SHARE)
    return FakeEngine(step), FakeEngine(draft, share)


def _numbers(text: str, form: str, *ranges: Range) -> list[float]:
    """Numbers with commas between them, one per range; InvalidField is a ValueError, too."""
    try:
        numbers = [float(part) for part in text.split(",")]
        return [limits.read("", number) for limits, number in zip(ranges, numbers, strict=True)]
    except ValueError:
        allowed = f"milliseconds are {_TIME}, TOP1 is {_SHARE}"
        raise argparse.ArgumentTypeError(f"must be {form}, not {text}: {allowed}") from None
