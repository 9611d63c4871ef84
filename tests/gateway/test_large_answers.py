"""Answers with very many log-probabilities do not keep the gRPC door's other calls waiting."""

from __future__ import annotations

import threading

import pytest

from foredraft.results import Delta, TokenLogprob, TopLogprob
from gateway.generate_service import _encoded


def answer(tokens: int) -> Delta:
    best = [TopLogprob(number, -1.0) for number in range(20)]
    return Delta("", tokens * [5], tokens * [TokenLogprob(5, -1.0, best)])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("delta", "beside"),
    [
        (answer(1), False),
        (answer(100), False),
        (answer(400), True),
        (Delta("", 9_999 * [5]), False),
    ],
)
async def test_what_is_large_is_encoded_beside_the_event_loop(delta: Delta, beside: bool) -> None:
    thread = await _encoded(delta, threading.current_thread)
    assert (thread is not threading.current_thread()) == beside
