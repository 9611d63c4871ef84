"""A child that dies again and again is given up; one that dies now and then is not."""

from __future__ import annotations

from foredraft.supervisor.restarts import MAX_RESTARTS, WINDOW_SECONDS, RestartLimit


def test_the_wait_doubles_until_it_is_given_up() -> None:
    limit = RestartLimit()
    delays = [limit.next_delay(0.0) for _ in range(MAX_RESTARTS)]
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2]
    assert limit.next_delay(0.0) is None


def test_old_restarts_are_forgotten() -> None:
    limit = RestartLimit()
    for _ in range(MAX_RESTARTS):
        limit.next_delay(0.0)
    assert limit.next_delay(WINDOW_SECONDS - 1) is None
    assert limit.next_delay(WINDOW_SECONDS) == 0.2
