"""The lane to the drafter: what it guesses for, it hears from here first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from foredraft.wire.codec.draft import encode_commits
from foredraft.wire.codec.nodes import decode_nodes
from foredraft.wire.errors import BadMessage
from foredraft.wire.lane import Lane, find_lane
from foredraft.wire.messages import Commit, NodeBatch, NodeGroup, VerifyBudget
from verify_service.step import Outcome

log = logging.getLogger(__name__)

_PATIENCE = 4  # commits without an answer; then the gateway tells the drafter of them again
_SECONDS = 0.25  # between two looks for a drafter that is not there

Name = tuple[int, int]  # seq_id, incarnation


@dataclass(slots=True)
class _Pair:
    """A sequence that the drafter may follow. unheard: commits since it was last heard of."""

    stream: int
    unheard: int = _PATIENCE

    @property
    def holds(self) -> bool:
        return self.unheard < _PATIENCE


class DraftLane:
    """All commits are told by the lane, and by the gateway those that nobody answers to there.

    So nothing has to be agreed on: which drafter follows a sequence, and whether it has missed
    something, shows in its answers. Commits that are told twice are harmless.

    path: where a drafter listens; None: there is no lane.
    take: called in a thread of the lane's own with guesses that came.
    """

    def __init__(self, path: Path | None, take: Callable[[NodeBatch], None]) -> None:
        self._path = path
        self._take = take
        self._lane: Lane | None = None
        self._pairs: dict[Name, _Pair] = {}
        self._closed = threading.Event()

    def open(self) -> None:
        """From now on look for a drafter, again whenever it is lost."""
        if self._path is not None:
            threading.Thread(
                target=self._keep, args=(self._path,), name="draft-lane", daemon=True
            ).start()

    def close(self) -> None:
        self._closed.set()
        lane = self._lane
        if lane is not None:
            lane.end()

    def tell(self, outcomes: Iterable[Outcome], budget: VerifyBudget) -> None:
        """A step has made commits; ``budget`` is that which it was made with.

        While steps are plain nobody hears of them here. What drafters guess before that ends may
        come by the lane all the same.
        """
        lane, before, commits = self._lane, self._pairs, []
        tells = lane is not None and budget.drafting and budget.max_nodes > 0
        self._pairs = {}
        for outcome, commit in _followed(outcomes):
            name = commit.seq_id, commit.incarnation
            pair = self._pairs[name] = before.get(name) or _Pair(outcome.sequence.stream)
            pair.unheard = pair.unheard + 1 if tells else _PATIENCE
            commits.append(commit)
        if lane is not None and tells and commits:
            lane.send(encode_commits(commits))

    def covers(self, outcomes: Iterable[Outcome]) -> bool:
        """True if the drafter knows of all commits among ``outcomes`` that it has to follow."""
        names = [(commit.seq_id, commit.incarnation) for _, commit in _followed(outcomes)]
        pairs = [self._pairs.get(name) for name in names]
        return bool(pairs) and all(pair is not None and pair.holds for pair in pairs)

    def heard(self, batch: NodeBatch) -> Iterator[tuple[int, NodeGroup]]:
        """The groups that came, with the streams of their sequences."""
        for group in batch.groups:
            pair = self._pairs.get((group.seq_id, group.incarnation))
            if pair is not None:
                pair.unheard = 0
                yield pair.stream, group

    def _keep(self, path: Path) -> None:
        while not self._closed.is_set():
            lane = find_lane(path)
            if lane is None:
                self._closed.wait(_SECONDS)
                continue
            log.info("guesses come by %s", path)
            self._lane = lane
            self._read(lane)
            self._lane = None

    def _read(self, lane: Lane) -> None:
        while (message := lane.receive()) is not None:
            try:
                batch, errors = decode_nodes(message)
            except BadMessage as bad:
                log.warning("guesses were dropped: %s", bad)
                continue
            if errors:
                log.warning("guesses of %d sequences were dropped: %s", len(errors), errors[0])
            self._take(batch)


def _followed(outcomes: Iterable[Outcome]) -> Iterator[tuple[Outcome, Commit]]:
    """Commits that need guesses: of sequences that may speculate and go on."""
    for outcome in outcomes:
        commit = outcome.commit
        if commit is not None and commit.finish is None and outcome.sequence.speculates:
            yield outcome, commit
