"""How likely the target chooses a guess, learned from what it chose before.

The estimate of a bucket of guesses (`bucket.py`) starts from a prior and follows the share of them
that the target chose, given that it reached their parent.
All sequences of a service teach one table; each sequence leans on it until it has its own record.

What a bucket does not know is how deep a guess stands, and that this text is easier or harder than
others: two shifts of the odds (`odds.py`) follow what the buckets get wrong, one of the service
for each source and depth, one of the sequence for each source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from foredraft.policy.bucket import LOOK_BUCKETS, Bucket
from foredraft.policy.odds import OddsShift, shifted
from foredraft.wire.messages import OUTCOME_DEPTHS, Source

# Of 256 observations that still count for the service, and of 32 for a sequence.
_SERVICE_KEEPS, _SEQUENCE_KEEPS = 1.0 - 1.0 / 256.0, 1.0 - 1.0 / 32.0
_PRIOR_WEIGHT, _SERVICE_WEIGHT = 8.0, 4.0  # observations that a starting point is worth
# Of shifts: outcomes that still count, and what no shift at all is worth (see `OddsShift`).
_DEPTH_MEMORY, _DEPTH_WEIGHT = 256.0, 4.0
_TEXT_MEMORY, _TEXT_WEIGHT = 48.0, 2.0


Shifts = Mapping[Source, OddsShift]


class _Tally:
    """Fading counts of guesses and of those that were chosen."""

    __slots__ = ("chosen", "seen")

    def __init__(self) -> None:
        self.chosen = 0.0
        self.seen = 0.0


class _Record:
    """What became of guesses of one bucket: all that the service has seen, and one sequence's."""

    __slots__ = ("_own", "_prior", "_served")

    def __init__(self, prior: float, served: _Tally) -> None:
        self._prior = prior
        self._served = served
        self._own = _Tally()

    def observe(self, chosen: bool) -> None:
        served, own = self._served, self._own
        served.seen = served.seen * _SERVICE_KEEPS + 1.0
        served.chosen = served.chosen * _SERVICE_KEEPS + chosen
        own.seen = own.seen * _SEQUENCE_KEEPS + 1.0
        own.chosen = own.chosen * _SEQUENCE_KEEPS + chosen

    def share(self) -> float:
        """The sequence's share, pulled towards the service's, which is pulled towards the prior."""
        served, own = self._served, self._own
        start = (served.chosen + _PRIOR_WEIGHT * self._prior) / (served.seen + _PRIOR_WEIGHT)
        return (own.chosen + _SERVICE_WEIGHT * start) / (own.seen + _SERVICE_WEIGHT)


class Calibration:
    """What all sequences of a service have shown.

    What is observed is learned when somebody asks for an estimate, or at leisure before.
    """

    def __init__(self) -> None:
        self.observed: list[tuple[SequenceCalibration, Bucket, bool, int]] = []  # not learned yet
        self._tallies: defaultdict[Bucket, _Tally] = defaultdict(_Tally)
        self._shifts = [
            {source: OddsShift(_DEPTH_MEMORY, _DEPTH_WEIGHT) for source in Source}
            for _ in range(OUTCOME_DEPTHS + 1)
        ]

    def learn(self) -> None:
        """Take in what was observed, in that order."""
        observed, self.observed = self.observed, []
        for sequence, bucket, chosen, depth in observed:
            sequence.learn(bucket, chosen, depth)

    def record(self, bucket: Bucket) -> _Record:
        """A new sequence's, which is part of it."""
        return _Record(bucket.prior, self._tallies[bucket])

    def shifts(self, depth: int) -> Shifts:
        """What guesses at that depth have beyond their buckets."""
        return self._shifts[min(depth, OUTCOME_DEPTHS)]


class _Records(dict[Bucket, _Record]):
    """A sequence's, each made when it is first asked for."""

    def __init__(self, service: Calibration) -> None:
        super().__init__()
        self._service = service

    def __missing__(self, bucket: Bucket) -> _Record:
        record = self[bucket] = self._service.record(bucket)
        return record


class _Estimates(dict[Bucket, float]):
    """Those for one depth, each made when it is first asked for."""

    def __init__(self, records: _Records, by_depth: Shifts, by_text: Shifts) -> None:
        super().__init__()
        self._records = records
        self._by_depth = by_depth
        self._by_text = by_text

    def __missing__(self, bucket: Bucket) -> float:
        source = bucket.source
        shift = self._by_depth[source].value + self._by_text[source].value
        estimate = self[bucket] = shifted(self._records[bucket].share(), shift)
        return estimate


class SequenceCalibration:
    """One sequence's own record, resting on the service's.

    What it told since its last observation it tells again, whatever other sequences teach the
    service meanwhile: a tree is grown by one set of estimates, and quickly.
    """

    def __init__(self, service: Calibration) -> None:
        self._service = service
        self._records = _Records(service)
        self._shifts = {source: OddsShift(_TEXT_MEMORY, _TEXT_WEIGHT) for source in Source}
        self._told: dict[int, _Estimates] = {}  # by depth
        self._looks: tuple[float, ...] = ()

    def observe(self, bucket: Bucket, chosen: bool, depth: int = 1) -> None:
        """Note what became of a guess ``depth`` below the root of its time."""
        self._service.observed.append((self, bucket, chosen, depth))
        if bucket.source is Source.MODEL:
            self._records[LOOK_BUCKETS[bucket.rank]].observe(chosen)
            self._looks = ()

    def learn(self, bucket: Bucket, chosen: bool, depth: int) -> None:
        """Take in what was noted."""
        record = self._records[bucket]
        depth_shift = self._service.shifts(depth)[bucket.source]
        text_shift = self._shifts[bucket.source]
        estimate = shifted(record.share(), depth_shift.value + text_shift.value)
        depth_shift.observe(estimate, chosen)
        text_shift.observe(estimate, chosen)
        record.observe(chosen)
        self._told.clear()

    def estimate(self, bucket: Bucket, depth: int = 1) -> float:
        """Probability in (0, 1) that the target chooses such a guess, its parent given."""
        return self.estimates(depth)[bucket]

    def estimates(self, depth: int) -> Mapping[Bucket, float]:
        """The same for all guesses at that depth, until the next observation."""
        if self._service.observed:
            self._service.learn()
        told = self._told.get(depth)
        if told is None:
            shifts = self._service.shifts(depth)
            told = self._told[depth] = _Estimates(self._records, shifts, self._shifts)
        return told

    def looks(self) -> tuple[float, ...]:
        """How often the target's choice is the draft model's best guess, its second, its third.

        That is what is known of a place before the model has looked at it.
        """
        if not self._looks:
            self._looks = tuple([self._records[bucket].share() for bucket in LOOK_BUCKETS])
        return self._looks
