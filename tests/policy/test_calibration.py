"""Estimates follow what the target chose: up on copies, down on chat, and back again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foredraft.policy.calibration import (
    Calibration,
    SequenceCalibration,
    model_bucket,
    prior,
    suffix_bucket,
)


def test_priors_grow_with_match_and_probability_and_fall_with_rank() -> None:
    matches = [prior(suffix_bucket(match, 0)) for match in range(1, 40)]
    chances = [prior(model_bucket(chance / 1000, 0)) for chance in range(1001)]
    for values in (matches, chances):
        assert values == sorted(values)
        assert min(values) > 0.0 and max(values) < 1.0
    assert prior(suffix_bucket(8, 0)) > prior(suffix_bucket(8, 1)) > prior(suffix_bucket(8, 2))


def test_a_copy_earns_trust_within_a_few_commits() -> None:
    calibration = SequenceCalibration(Calibration())
    bucket = suffix_bucket(20, 0)
    for _ in range(32):
        calibration.observe(bucket, True)
    assert calibration.estimate(bucket) > 0.98
    assert calibration.estimate(bucket) ** 16 > 0.7  # a chain of 16 is still likely whole


def test_misses_lose_trust_and_hits_bring_it_back() -> None:
    calibration = SequenceCalibration(Calibration())
    bucket = suffix_bucket(20, 0)
    for _ in range(32):
        calibration.observe(bucket, False)
    assert calibration.estimate(bucket) < 0.08
    for _ in range(32):
        calibration.observe(bucket, True)
    assert calibration.estimate(bucket) > 0.6


def test_a_new_sequence_starts_from_what_others_showed_and_then_goes_its_own_way() -> None:
    service = Calibration()
    bucket = model_bucket(0.6, 0)
    before = SequenceCalibration(service).estimate(bucket)
    teacher, pupil = SequenceCalibration(service), SequenceCalibration(service)
    for _ in range(50):
        teacher.observe(bucket, True)
    assert pupil.estimate(bucket) > before
    for _ in range(50):
        pupil.observe(bucket, False)
    assert pupil.estimate(bucket) < 0.1 < teacher.estimate(bucket)


def test_buckets_do_not_teach_each_other() -> None:
    calibration = SequenceCalibration(Calibration())
    for _ in range(100):
        calibration.observe(suffix_bucket(1, 0), False)
    assert calibration.estimate(suffix_bucket(30, 0)) == prior(suffix_bucket(30, 0))


@given(st.lists(st.booleans(), max_size=300), st.integers(1, 64), st.integers(0, 5))
def test_estimates_are_probabilities(outcomes, match, rank) -> None:
    calibration = SequenceCalibration(Calibration())
    bucket = suffix_bucket(match, rank)
    for chosen in outcomes:
        calibration.observe(bucket, chosen)
        assert 0.0 < calibration.estimate(bucket) < 1.0
