"""Which share of promised tokens comes, over a long time."""

from __future__ import annotations

import pytest

from foredraft.policy.promise import Promises


def test_promises_are_believed_until_something_is_seen() -> None:
    assert Promises().kept == 1.0


@pytest.mark.parametrize("share", [0.0, 0.25, 1.5])
def test_the_share_that_comes_is_found(share: float) -> None:
    promises = Promises()
    for _ in range(4000):
        promises = promises.after(5.0, 5.0 * share)
    assert promises.kept == pytest.approx(share, abs=0.01)


def test_a_change_is_followed() -> None:
    promises = Promises()
    for kept in [0.9] * 4000 + [0.3] * 4000:
        promises = promises.after(4.0, 4.0 * kept)
    assert promises.kept == pytest.approx(0.3, abs=0.02)


def test_steps_without_guesses_say_nothing() -> None:
    before = Promises().after(100.0, 40.0)
    assert before.after(0.0, 0.0) == before
