"""How likely the target chooses a guess, learned from what it chose before.

Guesses are put into buckets: a suffix guess by the length of its match and by how often it
followed such matches, a model guess by the draft's probability, both by rank among their siblings.
A bucket's estimate starts from a prior and follows the share of its guesses that the target chose,
given that it reached their parent.
All sequences of a service teach one table; each sequence leans on it until it has its own record.

What a bucket does not know is how deep a guess stands, and that this text is easier or harder than
others: two shifts of the odds (`odds.py`) follow what the buckets get wrong, one of the service
for each source and depth, one of the sequence for each source.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum
from typing import NamedTuple

from foredraft.policy.odds import OddsShift, shifted
from foredraft.wire.messages import OUTCOME_DEPTHS, Source

MAX_RANK = 2  # later siblings are counted with the third


class Evidence(IntEnum):
    """How often a suffix guess followed, among the places that were looked at."""

    FOLLOWED = 0  # not counted: it goes on from where the guess before it stands
    ONCE = 1  # there is only one such place
    ALWAYS = 2
    MOSTLY = 3  # after more than half of them
    SOMETIMES = 4
    ELSEWHERE = 5  # in another text

    @classmethod
    def of(cls, times: int, places: int) -> Evidence:
        """A guess that followed ``times`` times after ``places`` places."""
        if times == places:
            return cls.ONCE if places == 1 else cls.ALWAYS
        return cls.MOSTLY if 2 * times > places else cls.SOMETIMES


class Edit(IntEnum):
    """What a suffix guess says about a text in which something is replaced."""

    KEPT = 0  # what stands there, although it was replaced before
    REPLACED = 1  # what came instead of it then
    GOES_ON = 2  # the next token of a replacement that has begun
    BACK = 3  # what follows behind a replacement
    ALIGNED = 4  # what follows a token that stands a little behind a place where a copy broke off
    SWAPPED = 5  # what follows if a single token took the place of a single one


_MATCH_EDGES = (2, 3, 5, 9, 17)
_MATCH_PRIORS = (  # by the length of the match, and by evidence
    (0.40, 0.30, 0.65, 0.45, 0.07, 0.10),
    (0.45, 0.30, 0.80, 0.40, 0.06, 0.20),
    (0.72, 0.45, 0.90, 0.40, 0.12, 0.40),
    (0.87, 0.50, 0.90, 0.40, 0.12, 0.60),
    (0.96, 0.80, 0.96, 0.80, 0.30, 0.80),
    (0.99, 0.97, 0.99, 0.90, 0.60, 0.90),
)
_EDIT_PRIORS = (  # by doubts
    (0.65, 0.80, 0.93),
    (0.20, 0.10, 0.04),
    (0.90, 0.90, 0.90),
    (0.92, 0.92, 0.92),
    (0.40, 0.40, 0.40),
    (0.15, 0.15, 0.15),
)
_PROBABILITY_EDGES = (0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995)
_PROBABILITY_PRIORS = (
    0.005, 0.02, 0.06, 0.15, 0.27, 0.42, 0.57, 0.72, 0.85, 0.92, 0.96, 0.985, 0.995,
)  # fmt: skip
_SURE_SUFFIX = 0.6  # prior of a suffix guess whose agreement says much
_AGREED_SHIFTS = (0.0, 0.4, 1.2)  # of the odds, before anything was seen: no suffix, a weak, a sure
_DOUBTED_SHIFT = -1.5
_LATER_SUFFIX = 0.3  # a later sibling's prior, as a share of the first one's, per rank

_SERVICE_MEMORY, _SEQUENCE_MEMORY = 256.0, 32.0  # observations that still count
_PRIOR_WEIGHT, _SERVICE_WEIGHT = 8.0, 4.0  # observations that a starting point is worth
# Of shifts: outcomes that still count, and what no shift at all is worth (see `OddsShift`).
_DEPTH_MEMORY, _DEPTH_WEIGHT = 256.0, 4.0
_TEXT_MEMORY, _TEXT_WEIGHT = 48.0, 2.0

_ANY_LEVEL = -1
_FIRST_LOOKS = (0.6, 0.1, 0.04)  # how often a draft's best, second and third guess is right


class Bucket(NamedTuple):
    """Guesses that are expected to fare alike."""

    source: Source
    level: int
    rank: int


def _table(source: Source, levels: int) -> list[list[Bucket]]:
    """All buckets of a source, made once: there is one per guess to be found."""
    ranks = range(MAX_RANK + 1)
    return [[Bucket(source, level, rank) for rank in ranks] for level in range(levels)]


_EVIDENCES = len(Evidence)
_MATCH_LEVELS = len(_MATCH_PRIORS) * _EVIDENCES  # levels behind them are those of edits
_SUFFIX_LEVELS = _MATCH_LEVELS + len(Edit)  # twice: alone, and where the model guesses otherwise
_MODEL_LEVELS = len(_PROBABILITY_PRIORS)  # three times: alone, and where two kinds of suffix agree
_SUFFIX_BUCKETS = _table(Source.SUFFIX, 2 * _SUFFIX_LEVELS)
_MODEL_BUCKETS = _table(Source.MODEL, 3 * _MODEL_LEVELS)
_LOOK_BUCKETS = [Bucket(Source.MODEL, _ANY_LEVEL, rank) for rank in range(MAX_RANK + 1)]


def suffix_bucket(match: int, rank: int, evidence: Evidence = Evidence.FOLLOWED) -> Bucket:
    """Bucket of a guess that followed ``match`` equal tokens before, 1 or more."""
    level = bisect_right(_MATCH_EDGES, match) * _EVIDENCES + evidence
    return _SUFFIX_BUCKETS[level][min(rank, MAX_RANK)]


def edit_bucket(edit: Edit, doubts: int = 0) -> Bucket:
    """Bucket of a guess about a replacement that was left undone ``doubts`` times since."""
    return _SUFFIX_BUCKETS[_MATCH_LEVELS + edit][min(doubts, MAX_RANK)]


def model_bucket(probability: float, rank: int) -> Bucket:
    """Bucket of a guess to which the draft model gives ``probability``."""
    return _MODEL_BUCKETS[bisect_right(_PROBABILITY_EDGES, probability)][min(rank, MAX_RANK)]


def agreed_bucket(model: Bucket, suffix: Bucket) -> Bucket:
    """Bucket of a guess of the draft model that the suffix cache makes, too."""
    sure = prior(suffix) >= _SURE_SUFFIX
    return _MODEL_BUCKETS[model.level + _MODEL_LEVELS * (1 + sure)][model.rank]


def doubted_bucket(suffix: Bucket) -> Bucket:
    """Bucket of a suffix guess at a place where the draft model guesses otherwise."""
    return _SUFFIX_BUCKETS[suffix.level + _SUFFIX_LEVELS][suffix.rank]


def prior(bucket: Bucket) -> float:
    """The estimate before anything was seen."""
    return _PRIORS[bucket]


def _prior(bucket: Bucket) -> float:
    if bucket.level == _ANY_LEVEL:
        return _FIRST_LOOKS[bucket.rank]
    if bucket.source is Source.MODEL:
        agreed, level = divmod(bucket.level, _MODEL_LEVELS)
        return shifted(_PROBABILITY_PRIORS[level], _AGREED_SHIFTS[agreed])
    if bucket.level >= _SUFFIX_LEVELS:
        alone = _SUFFIX_BUCKETS[bucket.level - _SUFFIX_LEVELS][bucket.rank]
        return shifted(_prior(alone), _DOUBTED_SHIFT)
    if bucket.level >= _MATCH_LEVELS:
        return _EDIT_PRIORS[bucket.level - _MATCH_LEVELS][bucket.rank]
    match, evidence = divmod(bucket.level, _EVIDENCES)
    return float(_MATCH_PRIORS[match][evidence] * _LATER_SUFFIX**bucket.rank)


_PRIORS = {
    bucket: _prior(bucket)
    for level in (*_SUFFIX_BUCKETS, *_MODEL_BUCKETS, _LOOK_BUCKETS)
    for bucket in level
}


class _Tally:
    """Exponentially fading counts."""

    __slots__ = ("chosen", "seen")

    def __init__(self) -> None:
        self.chosen = 0.0
        self.seen = 0.0

    def observe(self, chosen: bool, memory: float) -> None:
        keep = 1.0 - 1.0 / memory
        self.seen = self.seen * keep + 1.0
        self.chosen = self.chosen * keep + chosen

    def blend(self, start: float, weight: float) -> float:
        """The observed share, pulled towards ``start`` as by ``weight`` observations."""
        return (self.chosen + weight * start) / (self.seen + weight)


class Calibration:
    """What all sequences of a service have shown."""

    def __init__(self) -> None:
        self._tallies: dict[Bucket, _Tally] = {}
        self._shifts: dict[tuple[Source, int], OddsShift] = {}

    def observe(self, bucket: Bucket, chosen: bool) -> None:
        """Take in whether the target, at the guess's parent, chose the guess."""
        self._tallies.setdefault(bucket, _Tally()).observe(chosen, _SERVICE_MEMORY)

    def estimate(self, bucket: Bucket) -> float:
        """Share of such guesses that is chosen, whatever their depth."""
        tally = self._tallies.get(bucket)
        start = prior(bucket)
        return start if tally is None else tally.blend(start, _PRIOR_WEIGHT)

    def shift(self, source: Source, depth: int) -> OddsShift:
        """What guesses at that depth have beyond their buckets."""
        key = source, min(depth, OUTCOME_DEPTHS)
        shift = self._shifts.get(key)
        if shift is None:
            shift = self._shifts[key] = OddsShift(_DEPTH_MEMORY, _DEPTH_WEIGHT)
        return shift


class SequenceCalibration:
    """One sequence's own record, resting on the service's.

    What it told since its last observation it tells again, whatever other sequences teach the
    service meanwhile: a tree is grown by one set of estimates, and quickly.
    """

    def __init__(self, service: Calibration) -> None:
        self._service = service
        self._tallies: dict[Bucket, _Tally] = {}
        self._shifts = {source: OddsShift(_TEXT_MEMORY, _TEXT_WEIGHT) for source in Source}
        self._told: dict[tuple[Bucket, int], float] = {}
        self._looks: tuple[float, ...] = ()

    def observe(self, bucket: Bucket, chosen: bool, depth: int = 1) -> None:
        """Take in what became of a guess ``depth`` below the root of its time."""
        estimate = self._estimate(bucket, depth)
        self._service.shift(bucket.source, depth).observe(estimate, chosen)
        self._shifts[bucket.source].observe(estimate, chosen)
        self._count(bucket, chosen)
        if bucket.source is Source.MODEL:
            self._count(_LOOK_BUCKETS[bucket.rank], chosen)
            self._looks = ()
        self._told.clear()

    def estimate(self, bucket: Bucket, depth: int = 1) -> float:
        """Probability in (0, 1) that the target chooses such a guess, its parent given."""
        key = bucket, min(depth, OUTCOME_DEPTHS)
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = self._estimate(bucket, depth)
        return told

    def looks(self) -> tuple[float, ...]:
        """How often the target's choice is the draft model's best guess, its second, its third.

        That is what is known of a place before the model has looked at it.
        """
        if not self._looks:
            self._looks = tuple(self._blended(bucket) for bucket in _LOOK_BUCKETS)
        return self._looks

    def _count(self, bucket: Bucket, chosen: bool) -> None:
        self._service.observe(bucket, chosen)
        self._tallies.setdefault(bucket, _Tally()).observe(chosen, _SEQUENCE_MEMORY)

    def _estimate(self, bucket: Bucket, depth: int) -> float:
        depth_shift = self._service.shift(bucket.source, depth).value
        return shifted(self._blended(bucket), depth_shift + self._shifts[bucket.source].value)

    def _blended(self, bucket: Bucket) -> float:
        start = self._service.estimate(bucket)
        tally = self._tallies.get(bucket)
        return start if tally is None else tally.blend(start, _SERVICE_WEIGHT)
