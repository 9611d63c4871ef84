"""Estimates follow what the target chose: up on copies, down on chat, and back again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.policy.bucket import model_bucket, suffix_bucket
from foredraft.policy.calibration import Calibration, SequenceCalibration


def test_priors_grow_with_match_and_probability_and_fall_with_rank() -> None:
    matches = [suffix_bucket(match, 0).prior for match in range(1, 40)]
    chances = [model_bucket(chance / 1000, 0).prior for chance in range(1001)]
    for values in (matches, chances):
        assert values == sorted(values)
        assert min(values) > 0.0 and max(values) < 1.0
    first, second, third = (suffix_bucket(8, rank).prior for rank in range(3))
    assert first > second > third


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


def test_buckets_teach_each_other_little() -> None:
    calibration = SequenceCalibration(Calibration())
    for _ in range(100):
        calibration.observe(suffix_bucket(1, 0), False)
    start = suffix_bucket(30, 0).prior
    assert start - 0.04 < calibration.estimate(suffix_bucket(30, 0)) < start
    assert calibration.estimate(model_bucket(0.6, 0)) == model_bucket(0.6, 0).prior


class Text:
    """Guesses of a draft whose acceptance is what ``truth`` says of its probability and depth."""

    def __init__(self, seed: int, service: Calibration, truth: Callable[[float, int], float]):
        self.truth = truth
        self.calibration = SequenceCalibration(service)
        self._random = random.Random(seed)

    def commits(self, count: int) -> dict[int, tuple[float, float, int]]:
        """Sums of what was estimated and of the truth, and the guesses, by depth."""
        sums: dict[int, tuple[float, float, int]] = {}
        for _ in range(count):
            depth, right = 1, True
            while right and depth <= 8:
                chance = self._random.choice((0.3, 0.5, 0.7, 0.9))
                true = self.truth(chance, depth)
                right = self._random.random() < true
                bucket = model_bucket(chance, 0)
                before = sums.get(depth, (0.0, 0.0, 0))
                told = self.calibration.estimate(bucket, depth)
                sums[depth] = before[0] + told, before[1] + true, before[2] + 1
                self.calibration.observe(bucket, right, depth)
                depth += 1
        return sums


def bias(sums: Mapping[int, tuple[float, float, int]], *depths: int) -> float:
    """How much too high the estimates at these depths were on average."""
    told, true, guesses = (sum(sums[d][column] for d in depths) for column in range(3))
    assert guesses > 30
    return (told - true) / guesses


def harder_below(chance: float, depth: int) -> float:
    return chance * (1.0 if depth == 1 else 0.7)


def easier_below(chance: float, depth: int) -> float:
    return chance * (0.6 if depth == 1 else 1.0)


def rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


SEEDS = range(4)


@pytest.mark.parametrize("truth", [harder_below, easier_below])
def test_estimates_learn_what_depth_does(truth) -> None:
    wrong: list[float] = []
    for seed in SEEDS:
        service = Calibration()
        Text(seed, service, truth).commits(400)
        sums = Text(seed + 10, service, truth).commits(300)  # starts from what the service knows
        wrong += [bias(sums, 1), bias(sums, 2, 3)]
    assert rms(wrong) < 0.05


def test_each_of_two_unlike_sequences_is_estimated_right() -> None:
    wrong: list[float] = []
    for seed in SEEDS:
        service = Calibration()
        easy = Text(seed, service, lambda chance, _: min(0.97, 1.2 * chance))
        hard = Text(seed + 10, service, lambda chance, _: 0.4 * chance)
        for _ in range(4):  # in turns, as a service sees them
            easy.commits(30)
            hard.commits(30)
        wrong += [bias(easy.commits(150), 1), bias(hard.commits(150), 1)]
    assert rms(wrong) < 0.05


def test_estimates_follow_a_change() -> None:
    at_once: list[float] = []
    later: list[float] = []
    for seed in SEEDS:
        text = Text(seed, Calibration(), easier_below)
        text.commits(300)
        text.truth = harder_below
        at_once.append(bias(text.commits(40), 1))
        text.commits(360)
        sums = text.commits(200)
        later += [bias(sums, 1), bias(sums, 2, 3)]
    assert rms(at_once) > 0.1
    assert rms(later) < 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_it_does_not_matter_when_outcomes_are_learned(seed: int) -> None:
    """At once or when somebody asks: two sequences are told the very same."""
    services = Calibration(), Calibration()
    pairs = [[SequenceCalibration(service) for service in services] for _ in range(2)]
    rng = random.Random(seed)
    buckets = [model_bucket(0.4, 0), model_bucket(0.7, 1), suffix_bucket(3, 0)]
    for _ in range(300):
        pair, bucket, depth = rng.choice(pairs), rng.choice(buckets), rng.randrange(1, 11)
        if rng.random() < 0.3:
            at_once, lazily = (one.estimate(bucket, depth) for one in pair)
            assert at_once == lazily and pair[0].looks() == pair[1].looks()
            continue
        chosen = rng.random() < 0.6
        for one in pair:
            one.observe(bucket, chosen, depth)
        services[0].learn()


def test_a_look_is_worth_what_looks_have_shown() -> None:
    calibration = SequenceCalibration(Calibration())
    before = calibration.looks()
    assert before == tuple(sorted(before, reverse=True)) and sum(before) < 1.0
    for chance in (0.2, 0.5, 0.9) * 20:  # whatever the draft thinks, its second guess is right
        for rank, chosen in enumerate((False, True, False)):
            calibration.observe(model_bucket(chance, rank), chosen)
    best, second, third = calibration.looks()
    assert second > 0.9 and max(best, third) < 0.1


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 32)), max_size=300),
    st.integers(1, 64),
    st.integers(0, 5),
)
def test_estimates_are_probabilities(outcomes, match, rank) -> None:
    calibration = SequenceCalibration(Calibration())
    bucket = suffix_bucket(match, rank)
    for chosen, depth in outcomes:
        calibration.observe(bucket, chosen, depth)
        assert 0.0 < calibration.estimate(bucket, depth) < 1.0
