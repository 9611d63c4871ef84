"""The draft workers, and which of them guesses for which sequence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from foredraft.wire.messages import Commit, DraftBudget
from gateway.draft_link import DraftEvents, DraftLink
from gateway.request import Request


class DraftPool:
    """A sequence stays with the drafter that knows it until that one is lost.

    Sequences for which no drafter has a place are decoded plainly until there is one. While a
    verify worker decodes plainly, nobody hears of its sequences: what drafters have missed they are
    told at once when that is to end. One that keeps texts of finished requests is told when they
    begin and end.
    """

    def __init__(self, addresses: Sequence[str], events: DraftEvents) -> None:
        self._links = [
            DraftLink(worker, address, events) for worker, address in enumerate(addresses)
        ]
        self._homes: dict[int, DraftLink] = {}  # by seq_id
        self._loads: Counter[int] = Counter()  # worker -> sequences
        self._plain: set[int] = set()  # verify workers for whose sequences nobody guesses

    @property
    def up(self) -> bool:
        return self.count_up() > 0

    def count_up(self) -> int:
        return sum(link.up for link in self._links)

    async def run(self) -> None:
        """Keep the streams up until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for link in self._links:
                tasks.create_task(link.run())

    def open(self, request: Request) -> None:
        """Open a sequence as its journal stands: where it is followed, else where few are."""
        link = self._homes.get(request.seq_id) or self._choose()
        if link is None or (request.verify_worker in self._plain and not link.keeps_texts):
            return
        link.open(request)
        self._settle(request, link)

    def adopt(self, requests: Iterable[Request]) -> None:
        """Open the sequences that no drafter follows."""
        for request in requests:
            if request.seq_id not in self._homes:
                self.open(request)

    def rest(self, verify_worker: int) -> None:
        """Nobody guesses for the sequences of that worker from now on."""
        self._plain.add(verify_worker)

    def wake(self, verify_worker: int, requests: Iterable[Request]) -> int:
        """Guesses are wanted again for ``requests``, which are those of that worker.

        Returns how many tokens drafters are told with that.
        """
        if verify_worker not in self._plain:
            return 0
        self._plain.remove(verify_worker)
        told = 0
        for request in requests:
            link = self._homes.get(request.seq_id) or self._choose()
            if link is not None:
                told += link.catch_up(request)
                self._settle(request, link)
        return told

    def follow(
        self, verify_worker: int, committed: Iterable[tuple[Request, Commit]], *, told: bool
    ) -> None:
        """Tell the drafters what a step has committed; the journals hold it already.

        ``told``: those that follow the sequences know of it already.
        """
        if verify_worker in self._plain or not self.up:
            return
        known: dict[DraftLink, list[tuple[Request, Commit]]] = {}
        for request, commit in committed:
            link = self._homes.get(request.seq_id)
            if link is None:
                self.open(request)
            else:
                known.setdefault(link, []).append((request, commit))
        for link, some in known.items():
            link.follow(some, told=told)

    def close(self, request: Request) -> None:
        """Forget a sequence."""
        link = self._homes.pop(request.seq_id, None)
        if link is not None:
            self._loads[link.worker] -= 1
            followed = request.verify_worker not in self._plain
            link.close(request, tell=followed or link.keeps_texts)

    def forget(self, worker: int) -> list[int]:
        """The sequences of a drafter that was lost; nobody guesses for them now."""
        lost = [seq_id for seq_id, link in self._homes.items() if link.worker == worker]
        for seq_id in lost:
            del self._homes[seq_id]
        del self._loads[worker]
        return lost

    def send_budget(self, worker: int, budget: DraftBudget) -> None:
        """One without nodes lets the drafter rest."""
        self._links[worker].send(budget)

    def _settle(self, request: Request, link: DraftLink) -> None:
        if link.follows(request) and request.seq_id not in self._homes:
            self._homes[request.seq_id] = link
            self._loads[link.worker] += 1

    def _choose(self) -> DraftLink | None:
        candidates = [link for link in self._links if link.up]
        return min(candidates, key=lambda link: self._loads[link.worker], default=None)
