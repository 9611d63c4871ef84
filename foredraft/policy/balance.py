"""Which way of running steps is the quickest here: the one that has brought the most tokens.

What a hold earns can be foretold (`hold.py`), but not all that guessing costs: cores that two
models share, messages, a drafter that is slower than it was. So the ways are compared by what they
brought: one is in force, the others are tried now and then, for a window between two windows of the
one in force. A trial that was in vain is repeated when what it lost has become a small part of all
time, and each further one after twice that. Plain decoding is only left for a way that has won
twice in a row, since windows differ by chance.
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
_LEAST_REST_DISPLACED = 5.0  # and before the first one of a way that was in force until then
_NEAR = 0.75  # of the rate of the way in force: a little, and it may be the other way round
_PASS_SLACK = 1.5  # a pass without guesses may be so much quicker than one with them
_MOST_DOUBTS = 3  # a rest is doubled so often at most


class Way(Enum):
    """How the steps of a verify worker are run; all but PLAIN verify guesses.

    In the order in which they are tried.
    """

    PLAIN = "plain"  # no guesses are made
    FREE = "free"  # a step never waits
    HELD = "held"  # a step waits for guesses while that pays
    SERIAL = "serial"  # drafter and target take turns: nothing is drafted ahead


# It needs no history, and is best where both models compute with the same cores.
FIRST_WAY = Way.SERIAL


@dataclass(frozen=True, slots=True)
class Window:
    """Some steps in a row, run one way.

    tokens: what one sequence got, or can be said to have got (`promise.py`).
    bound: tokens per millisecond of one sequence that its steps would have brought without
        guesses, a token each, neither held nor with rows for them.
    before_ms: what its trial has cost before it began: time in which drafters woke up and steps
        were run neither way, beyond what the way in force would have needed.
    """

    way: Way
    tokens: float
    milliseconds: float
    bound: float
    before_ms: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.milliseconds


@dataclass(frozen=True, slots=True)
class Record:
    """Tokens per millisecond of one sequence, and for how long not to try that way again.

    doubts: trials in vain since the first; the rest is doubled for each of them.
    promising: the last trial has won.
    """

    rate: float
    rest_ms: float = 0.0
    doubts: int = 0
    rested_ms: float = 0.0
    promising: bool = False

    @property
    def left_ms(self) -> float:
        return self.rest_ms * 2.0**self.doubts - self.rested_ms

    def after_rest(self, milliseconds: float) -> Record:
        return replace(self, rested_ms=self.rested_ms + milliseconds)

    def at_once(self) -> Record:
        return replace(self, rest_ms=0.0, doubts=0)

    def undoubted(self) -> Record:
        return replace(self, doubts=0)

    def afresh(self) -> Record:
        return replace(self, doubts=0, rested_ms=0.0)


Records = Mapping[Way, Record]


@dataclass(frozen=True, slots=True)
class Balance:
    """What is known of the ways for one size of batch; replaced, never changed.

    way: how the next window is to be run.
    in_force: the way that others are compared with.
    borrowed: rates are those of another size, and say only which part of each other they are.
    """

    way: Way = FIRST_WAY
    in_force: Way = FIRST_WAY
    records: Records = field(default_factory=dict)
    borrowed: bool = False

    @classmethod
    def first(cls, way: Way) -> Balance:
        """Where nothing is known."""
        return cls(way, way)

    @property
    def rate(self) -> float:
        """Tokens per millisecond of one sequence, the way in force; 0 before that is known."""
        known = self.records.get(self.in_force)
        return 0.0 if known is None or self.borrowed else known.rate

    @property
    def plain_rate(self) -> float:
        """Of plain decoding; 0 before that is known."""
        plain = self.records.get(Way.PLAIN)
        return 0.0 if plain is None or self.borrowed else plain.rate

    @property
    def rival_rate(self) -> float:
        """Of what the next window is compared with while it lasts; 0 if that is not known.

        Guesses in force have to be quicker than plain decoding, whatever they brought with other
        texts.
        """
        if self.borrowed or self.on_trial or self.rests:
            return self.rate
        return self.plain_rate

    @property
    def on_trial(self) -> bool:
        """The next window is one of a way that is not in force."""
        return self.way is not self.in_force

    @property
    def rests(self) -> bool:
        """The next window is one of plain decoding, which is in force."""
        return self.way is self.in_force is Way.PLAIN

    @property
    def is_asked(self) -> bool:
        """How the next window ends is a question of now, not of texts that differ."""
        return self.on_trial or self.rests or self.borrowed

    def untried(self) -> Balance:
        """The next window is one of the way in force."""
        return replace(self, way=self.in_force)

    def for_size(self, *, more: bool) -> Balance:
        """For another size of batch of which nothing is known yet.

        What a guess costs grows with the batch. So among ``more`` sequences plain decoding is tried
        at once, and among fewer all ways with guesses that were not far behind.
        """
        known = self.records.get(self.in_force)
        if known is None:
            return Balance.first(self.in_force)
        near = {way for way, record in self.records.items() if record.rate > _NEAR * known.rate}
        rivals = {Way.PLAIN} if more else near - {Way.PLAIN}
        records = {
            way: record.at_once() if way in rivals else record.afresh()
            for way, record in self.records.items()
        }
        return Balance(self.in_force, self.in_force, records, borrowed=True)

    def after(self, window: Window) -> Balance:
        """With the outcome of a window, and the way for the next one."""
        if window.way is self.in_force:
            records = self._gone_on(window)
            way = _next(records, self.in_force, window.bound)
            return Balance(way, self.in_force, records)
        records, in_force = self._tried(window)
        return Balance(in_force, in_force, records)

    def _gone_on(self, window: Window) -> Records:
        """The way in force has gone on."""
        before = self.records.get(window.way)
        rate = window.rate
        if before is not None and not self.borrowed:
            rate = before.rate + _MEMORY * (rate - before.rate)
        records = {w: r.after_rest(window.milliseconds) for w, r in self.records.items()}
        if before is not None and (self.borrowed or window.way is Way.PLAIN):
            # Plain decoding knows no good and bad guesses: where it has become slower, all have.
            factor = rate / before.rate
            records = {w: replace(r, rate=factor * r.rate) for w, r in records.items()}
        records[window.way] = Record(rate)
        return records

    def _tried(self, window: Window) -> tuple[Records, Way]:
        """Another way was tried: it takes over, or rests."""
        way, in_force = window.way, self.in_force
        records = {w: r.after_rest(window.milliseconds) for w, r in self.records.items()}
        best, rate = records[in_force], window.rate
        before = records.get(way, Record(rate, doubts=-1))  # a first trial leaves no doubt yet
        if _worth(way, rate) <= _LEAST_LEAD * _worth(in_force, best.rate):
            lost_ms = max(0.0, window.before_ms) + window.milliseconds * (1 - rate / best.rate)
            rest_ms = max(lost_ms / _TRIAL_SHARE, _LEAST_REST * window.milliseconds)
            if way is Way.PLAIN and rate > _NEAR * best.rate:  # texts may change before long
                rest_ms = _LEAST_REST * window.milliseconds
            records[way] = Record(rate, rest_ms, min(before.doubts + 1, _MOST_DOUBTS))
            return records, in_force
        if in_force is Way.PLAIN and not before.promising:
            records[way] = Record(rate, doubts=before.doubts, promising=True)
            return records, in_force
        lost_ms = window.milliseconds * (1 - best.rate / rate)
        rest_ms = _LEAST_REST_DISPLACED * window.milliseconds
        if in_force is not Way.PLAIN:
            rest_ms = max(lost_ms / _TRIAL_SHARE, rest_ms)
        records = {w: r.undoubted() for w, r in records.items()}
        records[in_force] = Record(best.rate, rest_ms)
        records[way] = Record(rate)
        return records, way


def _worth(way: Way, rate: float) -> float:
    return rate * (_LEAST_GAIN if way is Way.PLAIN else 1.0)


def _next(records: Records, in_force: Way, bound: float) -> Way:
    """A way that was never tried, or else one that seems better or has rested, or the one in force.

    What seems better is tried before it is believed: what is known of it may be old. Plain decoding
    comes before the others, and these by what they brought.
    """
    best = records[in_force]
    others = [way for way in Way if way is not in_force]
    hopeless = _PASS_SLACK * bound < best.rate
    for way in others:
        if way not in records and not (way is Way.PLAIN and hopeless):
            return way
    others = [way for way in others if way in records]
    least = _LEAST_LEAD * _worth(in_force, best.rate)
    better = [way for way in others if _worth(way, records[way].rate) > least]
    rested = [way for way in others if records[way].left_ms <= 0.0]
    due = {way: _worth(way, records[way].rate) for way in better or rested}
    return Way.PLAIN if Way.PLAIN in due else max(due, key=due.__getitem__, default=in_force)
