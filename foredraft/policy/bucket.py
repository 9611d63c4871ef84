"""Kinds of guesses that are expected to fare alike, and what is thought of each at first.

A suffix guess is put into a bucket by the length of its match and by how often it followed such
matches, or by what it says about a replacement; a model guess by the draft's probability; both by
rank among their siblings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from foredraft.policy.odds import shifted
from foredraft.wire.messages import Source

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

_ANY_LEVEL = -1
_FIRST_LOOKS = (0.6, 0.1, 0.04)  # how often a draft's best, second and third guess is right
_EVIDENCES = len(Evidence)
_MATCH_LEVELS = len(_MATCH_PRIORS) * _EVIDENCES  # levels behind them are those of edits
_SUFFIX_LEVELS = _MATCH_LEVELS + len(Edit)  # twice: alone, and where the model guesses otherwise
_MODEL_LEVELS = len(_PROBABILITY_PRIORS)  # three times: alone, and where two kinds of suffix agree


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """There is one object of each, which is found in a dict by what it is, not by its fields.

    prior: the estimate before anything was seen.
    """

    source: Source
    level: int
    rank: int
    prior: float


def suffix_bucket(match: int, rank: int, evidence: Evidence = Evidence.FOLLOWED) -> Bucket:
    """Bucket of a guess that followed ``match`` equal tokens before, 1 or more."""
    level = bisect_right(_MATCH_EDGES, match) * _EVIDENCES + evidence
    return _SUFFIX_BUCKETS[level][rank if rank < MAX_RANK else MAX_RANK]


def edit_bucket(edit: Edit, doubts: int = 0) -> Bucket:
    """Bucket of a guess about a replacement that was left undone ``doubts`` times since."""
    return _SUFFIX_BUCKETS[_MATCH_LEVELS + edit][min(doubts, MAX_RANK)]


def model_bucket(probability: float, rank: int) -> Bucket:
    """Bucket of a guess to which the draft model gives ``probability``."""
    level = bisect_right(_PROBABILITY_EDGES, probability)
    return _MODEL_BUCKETS[level][rank if rank < MAX_RANK else MAX_RANK]


def agreed_bucket(model: Bucket, suffix: Bucket) -> Bucket:
    """Bucket of a guess of the draft model that the suffix cache makes, too."""
    sure = suffix.prior >= _SURE_SUFFIX
    return _MODEL_BUCKETS[model.level + _MODEL_LEVELS * (1 + sure)][model.rank]


def doubted_bucket(suffix: Bucket) -> Bucket:
    """Bucket of a suffix guess at a place where the draft model guesses otherwise."""
    return _SUFFIX_BUCKETS[suffix.level + _SUFFIX_LEVELS][suffix.rank]


def _suffix_prior(level: int, rank: int) -> float:
    if level >= _SUFFIX_LEVELS:
        return shifted(_suffix_prior(level - _SUFFIX_LEVELS, rank), _DOUBTED_SHIFT)
    if level >= _MATCH_LEVELS:
        return _EDIT_PRIORS[level - _MATCH_LEVELS][rank]
    match, evidence = divmod(level, _EVIDENCES)
    return float(_MATCH_PRIORS[match][evidence] * _LATER_SUFFIX**rank)


def _model_prior(level: int, rank: int) -> float:
    agreed, level = divmod(level, _MODEL_LEVELS)
    return shifted(_PROBABILITY_PRIORS[level], _AGREED_SHIFTS[agreed])


def _table(source: Source, levels: int, prior: Callable[[int, int], float]) -> list[list[Bucket]]:
    """All buckets of a source, by level and rank."""
    ranks = range(MAX_RANK + 1)
    return [
        [Bucket(source, level, rank, prior(level, rank)) for rank in ranks]
        for level in range(levels)
    ]


_SUFFIX_BUCKETS = _table(Source.SUFFIX, 2 * _SUFFIX_LEVELS, _suffix_prior)
_MODEL_BUCKETS = _table(Source.MODEL, 3 * _MODEL_LEVELS, _model_prior)
# Of a look of the model, by rank, before it is known how sure it will be.
LOOK_BUCKETS = [
    Bucket(Source.MODEL, _ANY_LEVEL, rank, prior) for rank, prior in enumerate(_FIRST_LOOKS)
]
