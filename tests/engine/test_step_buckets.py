from __future__ import annotations

import pytest

from foredraft.engine.fp8.device_step import StepBucket
from foredraft.engine.fp8.step_buckets import StepBuckets

BUCKETS = StepBuckets(slots=64, nodes=64)


def test_shapes_are_few_and_powers_of_two() -> None:
    made = list(BUCKETS)
    assert len(made) == len(set(made)) == 31
    for bucket in made:
        assert bucket.slots is not None and bucket.rows is not None
        assert bucket.slots.bit_count() == bucket.rows.bit_count() == 1
        assert bucket.nodes == min(64, bucket.rows - bucket.slots)
    assert max(bucket.rows or 0 for bucket in made) == 128


@pytest.mark.parametrize(
    ("slots", "nodes", "shape"),
    [
        (1, 0, (1, 1, 0)),
        (1, 4, (1, 8, 7)),
        (1, 64, (1, 64, 63)),  # one node less, and half of the rows
        (3, 0, (4, 4, 0)),
        (33, 1, (64, 128, 64)),
    ],
)
def test_the_smallest_that_holds_a_step(
    slots: int, nodes: int, shape: tuple[int, int, int]
) -> None:
    bucket = BUCKETS.smallest(slots, nodes, filters=True)
    assert (bucket.slots, bucket.rows, bucket.nodes) == shape
    assert bucket.filters and not bucket.logits
    assert StepBucket(bucket.nodes, False, bucket.slots, bucket.rows) in list(BUCKETS)
