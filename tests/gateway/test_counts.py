"""Counts without locks are shown just as the library shows its own."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.counts import Count, Distribution

BOUNDS = (0.001, 0.5, 1.0, 20.0)


def lines(registry: CollectorRegistry) -> list[str]:
    """What is shown, but for the moments at which things were made."""
    shown = generate_latest(registry).decode().splitlines()
    return [line for line in shown if "_created" not in line]


@pytest.mark.parametrize("counts", [(), (1,), (3, 0, 4)])
def test_a_count(counts):
    mine, theirs = CollectorRegistry(), CollectorRegistry()
    count, counter = Count("a_b", "Text", mine), Counter("a_b", "Text", registry=theirs)
    for more in counts:
        count.inc(more)
        counter.inc(more)
    assert lines(mine) == lines(theirs)


@pytest.mark.parametrize("values", [(), (0.5,), (0.0, 0.001, 0.0011, 0.5, 0.7, 20.0, 20.1, 1e6)])
def test_a_distribution(values):
    mine, theirs = CollectorRegistry(), CollectorRegistry()
    distribution = Distribution("a_b", "Text", BOUNDS, mine)
    histogram = Histogram("a_b", "Text", registry=theirs, buckets=BOUNDS)
    for value in values:
        distribution.observe(value)
        histogram.observe(value)
    assert lines(mine) == lines(theirs)


def test_a_value_that_comes_several_times():
    once, often = CollectorRegistry(), CollectorRegistry()
    single, several = (Distribution("a", "Text", BOUNDS, each) for each in (once, often))
    for _ in range(4):
        single.observe(0.25)
    several.observe(0.25, 4)
    assert lines(once) == lines(often)
