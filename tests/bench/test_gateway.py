"""``foredraft bench gateway``: its options, its clients, and what it makes of steps' spans."""

from __future__ import annotations

from typing import Any

import pytest

from bench.gateway import Window, full_steps, spread
from bench.readers import HTTP, Load
from foredraft.cli.main import main
from foredraft.telemetry import names
from foredraft.telemetry.context import TRACEPARENT, span_context

LOAD = Load(HTTP, "127.0.0.1:1", count=4, tokens=100, sampled_every=4)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--doors", "grpc,smtp", "argument --doors: must be of grpc, http, with commas"),
        ("--clients", 0, "argument --clients: must be a whole number from 1"),
        ("--rounds", "x", "argument --rounds: must be a whole number from 1"),
        ("--json", "/proc", "--json must be a file that can be written"),
    ],
)
def test_options(capsys: pytest.CaptureFixture[str], option: str, value: object, text: str) -> None:
    try:
        code = main(["bench", "gateway", option, str(value)])
    except SystemExit as error:
        assert isinstance(error.code, int)
        code = error.code
    assert code == 2 and text in capsys.readouterr().err.splitlines()[-1]


def test_answers_have_different_lengths() -> None:
    """From half of what was asked for to all of it, again and again."""
    assert [LOAD.answer_tokens(number) for number in range(6)] == [100, 88, 75, 63, 100, 88]


def test_one_request_in_so_many_is_traced() -> None:
    contexts = []
    for number in range(8):
        ((key, header),) = LOAD.metadata(number)
        assert key == TRACEPARENT
        contexts.append(span_context(header))
    assert [context.trace_flags.sampled for context in contexts] == 2 * [True, False, False, False]
    assert len({context.trace_id for context in contexts}) == 8


def step(began_ns: int, ended_ns: int, sequences: int) -> dict[str, Any]:
    return {
        "start_ns": began_ns,
        "end_ns": ended_ns,
        "attributes": {names.SEQUENCES: sequences},
    }


def window(began_ns: int, ended_ns: int) -> Window:
    return Window(began_ns, ended_ns, 1.0, 1.0, 1, 1.0, 1.0)


def test_only_full_steps_within_a_window_count() -> None:
    inside, later = step(10, 20, 32), step(35, 40, 32)
    others = [step(9, 20, 32), step(10, 21, 32), step(12, 15, 31), step(22, 25, 32)]
    windows = [window(10, 20), window(30, 40)]
    assert full_steps([*others, inside, later], windows, clients=32) == [inside, later]


def test_a_spread_is_how_far_values_are_from_their_median() -> None:
    values = [100.0] * 90 + [103.0] * 8 + [50.0, 400.0]
    assert spread(values) == {
        "median": 100.0,
        "off_p50": 0.0,
        "off_p90": 3.0,
        "off_p99": 300.0,
        "off_max": 300.0,
    }
    assert spread([]) == {}
