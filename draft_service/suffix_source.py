"""Guesses of one sequence's suffix cache, place by place of its tree."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from draft_service.open_options import Option
from draft_service.suffix_cache import MAX_MATCH, SuffixCache
from foredraft.policy.calibration import SequenceCalibration, suffix_bucket
from foredraft.tree.token_tree import TokenTree

WIDTH = 3  # different guesses at one place
_GOOD_MATCH = 2  # tokens; a shorter match does not show where a text is copied from


class SuffixSource:
    """Knows the text, how guesses came about, and for which places it was asked already."""

    def __init__(
        self, tokens: Sequence[int], tree: TokenTree, calibration: SequenceCalibration
    ) -> None:
        self._cache = SuffixCache(tokens)
        self._tree = tree
        self._calibration = calibration
        self._trails: dict[int, Option] = {}  # how nodes came about
        self._asked: set[int] = set()
        self._resume: int | None = None  # where the text goes on if only its last token differs

    def options(self, parent_id: int, min_survival: float) -> list[Option]:
        """Guesses for what follows the root or a node; nothing where it was asked before."""
        if parent_id in self._asked:
            return []
        self._asked.add(parent_id)
        trail = self._trails.get(parent_id)
        if trail is not None:
            match, position = min(trail.match + 1, MAX_MATCH), trail.position + 1
            bucket = suffix_bucket(match, 0)
            left = self._tree.survival(parent_id) * (1.0 - self._calibration.estimate(bucket))
            if left < min_survival:  # alternatives would not be worth a look
                path = [] if position < len(self._cache) else self._tree.path(parent_id)
                return [Option(self._cache.follow(position, path), bucket, match, position)]
        return self._look_up(parent_id)

    def added(self, node_id: int, option: Option) -> None:
        """A guess of the cache has become a node."""
        self._trails[node_id] = option

    def commit(self, tokens: Sequence[int], last_options: Sequence[Option]) -> None:
        """Take in committed tokens; ``last_options`` were the guesses for the last of them."""
        self._resume = _place_after_replaced(last_options, tokens[-1])
        self._cache.append(tokens)

    def forget(self, alive: Collection[int]) -> None:
        """Drop what belongs to nodes that are gone; ``alive`` are those left, and the root."""
        self._trails = {node: self._trails[node] for node in self._trails if node in alive}
        self._asked.intersection_update(alive)

    def _look_up(self, parent_id: int) -> list[Option]:
        path = self._tree.path(parent_id)
        options = [
            Option(found.token, suffix_bucket(found.match, rank), found.match, found.position)
            for rank, found in enumerate(self._cache.propose(path, WIDTH))
        ]
        if self._resume is not None and parent_id == self._tree.root_id:
            token = self._cache.follow(self._resume, path)
            if all(option.token != token for option in options):
                options.append(Option(token, suffix_bucket(0, 0), 0, self._resume))
        return options


def _place_after_replaced(options: Sequence[Option], token: int) -> int | None:
    """Where the text goes on if ``token`` took the place of what it had after a good match.

    In edits a name is replaced and the rest stays, and no match says so: the token is new there.
    """
    best = max(options, key=lambda option: option.match, default=None)
    if best is None or best.match < _GOOD_MATCH or any(o.token == token for o in options):
        return None
    return best.position + 1
