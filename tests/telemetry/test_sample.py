"""However many come, a bounded number is kept, spread over all of them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from foredraft.telemetry.sample import Sample


@pytest.mark.parametrize("count", [0, 1, 39, 40, 41, 79, 80, 81, 2000, 12345])
def test_bounded_and_evenly_spread(count: int) -> None:
    sample: Sample[int] = Sample(40)
    for item in range(count):
        if sample.wants():
            sample.keep(item)
    kept = sample.kept
    assert len(kept) <= 40 and len(kept) >= min(count, 20)
    strides = {after - before for before, after in pairwise(kept)}
    assert len(strides) <= 1, "equal distances"
    if kept:
        assert kept[0] == 0 and count - kept[-1] <= max(strides, default=1)
