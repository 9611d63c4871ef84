"""Runaway repetition is found where it begins, and only where it is one."""

from __future__ import annotations

import pytest

from bench.loops import loop_start

SENTENCE = list(range(100, 120))


@pytest.mark.parametrize(
    ("tokens", "start"),
    [
        ([], 0),
        ([1, 2, 3], 3),
        ([9, 8, *[5] * 64], 2),
        ([9, 8, *[5] * 63], 65),  # too short
        ([7, *SENTENCE * 4], 1),
        ([7, *SENTENCE * 4, 100, 101], 1),  # the last period is not whole
        ([7, *SENTENCE * 4, 1], 82),  # it ended
        ([7, *range(40, 80), *range(40, 80), *range(40, 80)], 121),  # the period is too long
        ([7, *range(40, 72), *range(40, 72), *range(40, 71)], 96),  # not three periods
        ([7, *range(40, 72), *range(40, 72), *range(40, 72)], 1),
    ],
)
def test_where_a_loop_begins(tokens: list[int], start: int) -> None:
    assert loop_start(tokens) == start
