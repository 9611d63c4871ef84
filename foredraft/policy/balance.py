"""Which way of running steps is the quickest here: the one that has brought the most tokens.

What a hold earns can be foretold (`hold.py`), but not all that guessing costs: cores that two
models share, messages, a drafter that is slower than it was. So the ways are compared by what they
brought, and one that lost time is tried again when that loss has become a small part of all time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

_MEMORY = 0.25  # weight of the newest window
_LEAST_GAIN = 1.03  # a way with guesses must beat plain decoding by that much
_LEAST_LEAD = 1.02  # and the way in force by that much
_TRIAL_SHARE = 0.004  # of all time is what trials of one way may lose
_LEAST_REST = 20.0  # windows between two trials of one way, even if nothing is lost


class Way(Enum):
    """How the steps of a verify worker are run; all but PLAIN verify guesses."""

    HELD = "held"  # a step waits for guesses while that pays
    FREE = "free"  # a step never waits
    SERIAL = "serial"  # a step waits for all guesses
    PLAIN = "plain"  # none are made


# It needs no history, and is best where both models compute with the same cores.
FIRST_WAY = Way.SERIAL


@dataclass(frozen=True, slots=True)
class Window:
    """Some steps in a row, run one way.

    tokens: what one sequence got, or can be said to have got (`promise.py`).
    bound: tokens per millisecond of one sequence that plain decoding cannot exceed, because the
        target's passes alone took that long.
    settling_ms: the time before it, in which steps were neither run this way nor another.
    """

    way: Way
    tokens: float
    milliseconds: float
    bound: float
    settling_ms: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.milliseconds


@dataclass(frozen=True, slots=True)
class Record:
    """Tokens per millisecond of one sequence, and for how long not to try that way again."""

    rate: float
    rest_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Balance:
    """What is known of the ways for one size of batch; replaced, never changed.

    way: how the next window is to be run.
    """

    way: Way = FIRST_WAY
    records: Mapping[Way, Record] = field(default_factory=dict)

    @property
    def best_rate(self) -> float:
        """Tokens per millisecond of one sequence; 0 before anything is known."""
        return max((record.rate for record in self.records.values()), default=0.0)

    def after(self, window: Window) -> Balance:
        """With the outcome of a window, and the way for the next one."""
        before = self.records.get(window.way)
        rate = window.rate
        if before is not None:
            rate = before.rate + _MEMORY * (rate - before.rate)
        records = {
            way: replace(record, rest_ms=record.rest_ms - window.milliseconds)
            for way, record in self.records.items()
        }
        records[window.way] = Record(rate)
        best = _best(records, self.way)
        possible = records[best].rate
        if not self.records:  # there is nothing better to compare the first one with
            possible = max(possible, window.bound)
        lost_ms = (window.settling_ms + window.milliseconds) * (1 - window.rate / possible)
        # The best way gets a rest, too: it counts from when another one takes its place.
        rest_ms = max(lost_ms / _TRIAL_SHARE, _LEAST_REST * window.milliseconds)
        records[window.way] = Record(rate, rest_ms)
        return Balance(_next(records, best, window.bound), records)


def _best(records: Mapping[Way, Record], now: Way) -> Way:
    """The way with the highest rate; plain decoding and the way in force lead a little."""

    def worth(way: Way) -> float:
        lead = (_LEAST_GAIN if way is Way.PLAIN else 1.0) * (_LEAST_LEAD if way is now else 1.0)
        return records[way].rate * lead

    return max(records, key=worth)


def _next(records: Mapping[Way, Record], best: Way, bound: float) -> Way:
    """A way that was never tried, or else the one that has rested too long, or else the best."""
    hopeless = {Way.PLAIN} if bound * _LEAST_GAIN < records[best].rate else set()
    others = [way for way in Way if way is not best and way not in hopeless]
    for way in others:
        if way not in records:
            return way
    rested = [way for way in others if records[way].rest_ms <= 0.0]
    return min(rested, key=lambda way: records[way].rest_ms, default=best)
