"""Guesses of one sequence's suffix cache, place by place of its tree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from draft_service.open_options import Option, Trail
from draft_service.suffix_cache import LONG, MAX_MATCH, PAIR, SuffixCache
from draft_service.suffix_edits import LONGEST_OLD, Replacement
from draft_service.suffix_store import KeptText
from draft_service.suffix_trust import SuffixTrust
from foredraft.policy.bucket import Bucket, Edit, Evidence, edit_bucket, suffix_bucket
from foredraft.policy.calibration import SequenceCalibration
from foredraft.tree.token_tree import TokenTree

_WIDTH = 3  # different guesses at one place


class SuffixSource:
    """Knows the text, how guesses came about, and for which places it was asked already."""

    def __init__(
        self,
        tokens: Sequence[int],
        tree: TokenTree,
        calibration: SequenceCalibration,
        kept: Callable[[], KeptText | None],
    ) -> None:
        self._cache = SuffixCache(tokens)
        self._tree = tree
        self._calibration = calibration
        self._trails: dict[int, Trail] = {}  # how nodes came about
        self._asked: set[int] = set()
        self._trust = SuffixTrust()
        self._kept = kept  # what there is now of finished requests

    def options(self, parent_id: int, min_survival: float) -> list[Option]:
        """Guesses for what follows the root or a node; nothing where it was asked before."""
        if parent_id in self._asked:
            return []
        self._asked.add(parent_id)
        trail = self._trails.get(parent_id)
        path = self._path(parent_id, trail)
        if trail is not None:
            options = self._follow(trail, path)
        else:
            options = self._behind_replaced() if parent_id == self._tree.root_id else []
        options = _different(options)
        least = min_survival / self._tree.survival(parent_id)
        if self._open_mass(options) < least:  # alternatives would not be worth a look
            return options
        path = path or self._tree.path(parent_id)
        if self._cache.repeats(self._shortest(parent_id, trail), path):
            options = _different([*options, *self._look_up(path)])
        kept = self._kept()
        if kept is not None and self._open_mass(options) >= least:
            options = self._with_elsewhere(options, kept, path)
        return options

    def added(self, node_id: int, trail: Trail) -> None:
        """A guess has become a node."""
        self._trails[node_id] = trail

    def commit(self, tokens: Sequence[int], guessed: int) -> None:
        """Take in committed tokens, of which so many were guessed here."""
        self._trust = self._trust.after(guessed)
        self._cache.append(tokens)

    def forget(self, alive: Collection[int]) -> None:
        """Drop what belongs to nodes that are gone; ``alive`` are those left, and the root."""
        self._trails = {node: self._trails[node] for node in self._trails if node in alive}
        self._asked.intersection_update(alive)

    def _shortest(self, parent_id: int, trail: Trail | None) -> int:
        """Matches of fewer tokens are not looked up for the root or a node.

        Few tokens say nothing against what goes on from a longer match, or against a guess.
        """
        if parent_id == self._tree.root_id:
            return self._trust.shortest
        if trail is None or trail.match == 1:
            return max(self._trust.shortest, PAIR)
        return LONG

    def _look_up(self, path: Sequence[int]) -> list[Option]:
        """What followed the last tokens before, the longest match first."""
        options: list[Option] = []
        for rank, found in enumerate(self._cache.propose(path, _WIDTH)):
            bucket = suffix_bucket(found.match, rank, found.evidence)
            trail = Trail(found.match, found.position)
            option = Option(found.token, bucket, trail)
            options += [option] if rank else self._or_replaced(option, trail, path)
        return options

    def _with_elsewhere(
        self, options: list[Option], kept: KeptText, path: Sequence[int]
    ) -> list[Option]:
        """The guesses, and those of finished requests that are new or likelier."""
        merged = {option.token: option for option in options}
        for rank, found in enumerate(kept.propose(self._cache.tail(path), _WIDTH)):
            bucket = suffix_bucket(found.match, rank, found.evidence)
            known = merged.get(found.token)
            chances = self._calibration.estimates(depth=1)
            if known is None or chances[known.bucket] < chances[bucket]:
                trail = Trail(found.match, found.position, elsewhere=True)
                merged[found.token] = Option(found.token, bucket, trail)
        return list(merged.values())

    def _follow(self, trail: Trail, path: Sequence[int]) -> list[Option]:
        """What goes on from where the node's guess stands."""
        position = trail.position + 1
        if trail.elsewhere:
            return self._follow_elsewhere(trail)
        if trail.added > 1:
            within = Trail(0, position, trail.added - 1, trail.back)
            return [self._option(within, edit_bucket(Edit.GOES_ON), path)]
        if trail.added == 1:
            return [self._option(Trail(0, trail.back), edit_bucket(Edit.BACK), path)]
        match = min(trail.match + 1, MAX_MATCH)
        going_on = Trail(match, position)
        return self._or_replaced(
            self._option(going_on, suffix_bucket(match, 0), path), going_on, path
        )

    def _follow_elsewhere(self, trail: Trail) -> list[Option]:
        """The same in a finished request, as far as it goes."""
        kept = self._kept()
        going_on = trail._replace(
            match=min(trail.match + 1, MAX_MATCH), position=trail.position + 1
        )
        token = None if kept is None else kept.follow(going_on.position)
        if token is None:
            return []
        return [Option(token, suffix_bucket(going_on.match, 0, Evidence.ELSEWHERE), going_on)]

    def _or_replaced(self, option: Option, trail: Trail, path: Sequence[int]) -> list[Option]:
        """The guess, and what came the last time instead of the text that it begins."""
        known = self._cache.replacement(trail.position, path)
        instead = None if known is None else self._within(known, trail.position, 0, path)
        if known is None or instead is None:
            return [option]
        kept = option._replace(bucket=edit_bucket(Edit.KEPT, known.doubts))
        return [kept, self._option(instead, edit_bucket(Edit.REPLACED, known.doubts), path)]

    def _behind_replaced(self) -> list[Option]:
        """How copies may go on that broke off within the last tokens."""
        options: list[Option] = []
        for detour in self._cache.detours():
            if detour.known is not None:
                trail = self._within(detour.known, detour.at, detour.taken, ())
                edit = Edit.BACK if detour.taken == detour.known.added else Edit.GOES_ON
            elif (aligned := self._cache.find_last(detour.at + 1, LONGEST_OLD)) is not None:
                trail, edit = Trail(0, aligned + 1), Edit.ALIGNED
            else:
                trail = Trail(0, detour.at + 1) if detour.taken == 1 else None
                edit = Edit.SWAPPED
            if trail is not None:
                options.append(self._option(trail, edit_bucket(edit), ()))
        return options

    def _within(self, known: Replacement, at: int, taken: int, path: Sequence[int]) -> Trail | None:
        """Where a replacement of what stands at ``at`` goes on, after its first tokens."""
        back = at + known.removed
        if back >= len(self._cache) + len(path):
            return None
        if taken < known.added:
            return Trail(0, known.start + taken, known.added - taken, back)
        return Trail(0, back)

    def _path(self, parent_id: int, trail: Trail | None) -> Sequence[int]:
        """What of the node's path has to be known: nothing where the guesses are committed text."""
        if trail is not None and trail.elsewhere:
            return ()
        farthest = -1 if trail is None else max(trail.position, trail.back) + 2
        return () if 0 <= farthest < len(self._cache) else self._tree.path(parent_id)

    def _open_mass(self, options: Sequence[Option]) -> float:
        """Probability that none of the guesses is right."""
        if not options:
            return 1.0
        chances = self._calibration.estimates(depth=1)
        return 1.0 - sum([chances[option.bucket] for option in options])

    def _option(self, trail: Trail, bucket: Bucket, path: Sequence[int]) -> Option:
        return Option(self._cache.follow(trail.position, path), bucket, trail)


def _different(options: Iterable[Option]) -> list[Option]:
    """Without those whose token an earlier one has."""
    first: dict[int, Option] = {}
    for option in options:
        first.setdefault(option.token, option)
    return list(first.values())
