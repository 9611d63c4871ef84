"""The verify workers, and which of them decides which sequence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from foredraft.wire.errors import RETRY_SECONDS, Unavailable
from foredraft.wire.messages import (
    CloseSequence,
    CloseSequences,
    ModelInfo,
    OpenSequences,
    VerifyBudget,
    WorkerIdentity,
)
from gateway.request import Request
from gateway.verify_link import VerifyEvents, VerifyLink


class VerifyPool:
    """A sequence stays where it was opened, for its KV is there, until that worker is lost.

    Workers that are ill, up but not serving, get sequences only where none is well.
    """

    def __init__(self, addresses: Sequence[str], tokenizer_hash: str, events: VerifyEvents) -> None:
        self._links = [
            VerifyLink(worker, address, tokenizer_hash, self._served, events)
            for worker, address in enumerate(addresses)
        ]
        self._homes: dict[int, int] = {}  # seq_id -> worker
        self._loads: Counter[int] = Counter()  # worker -> sequences
        self._known: dict[int, WorkerIdentity] = {}  # each worker as it was seen last
        self.seen = asyncio.Event()  # set once any worker is known

    @property
    def up(self) -> bool:
        return any(link.up for link in self._links)

    def count_well(self) -> int:
        """Workers that are up and serve."""
        return sum(link.well for link in self._links)

    @property
    def max_sequences(self) -> int:
        """How many sequences the workers run at a time, those that are lost just now included."""
        return sum(identity.limits.max_sequences for identity in self._known.values())

    async def run(self) -> None:
        """Keep the streams up until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for link in self._links:
                tasks.create_task(link.run())

    def target(self) -> WorkerIdentity:
        """A worker that is up, or else one as it was seen last: all serve one model.

        Raises:
            Unavailable: none has been seen yet.
        """
        if not self._known:
            raise Unavailable("the target model is not ready yet", RETRY_SECONDS)
        return next((link.identity for link in self._links if link.identity), self._newest())

    def learn(self, worker: int, identity: WorkerIdentity) -> None:
        """A worker has come up."""
        self._known.pop(worker, None)
        self._known[worker] = identity
        self.seen.set()

    def open(self, request: Request) -> None:
        """Open a sequence, journal and all, at the worker with the fewest, a well one if possible.

        Raises:
            Unavailable: there is no stream to any worker.
        """
        candidates = [link for link in self._links if link.up]
        if not candidates:
            raise Unavailable("the target model is not connected", RETRY_SECONDS)
        link = min(candidates, key=lambda link: (link.ill, self._loads[link.worker]))
        request.verify_worker = link.worker
        self._homes[request.seq_id] = link.worker
        self._loads[link.worker] += 1
        link.send(OpenSequences((request.opening(),)))

    def close(self, request: Request, *, tell: bool) -> None:
        """Forget a sequence; ``tell``: its worker still holds it."""
        worker = self._homes.pop(request.seq_id, None)
        if worker is None:
            return
        self._loads[worker] -= 1
        if tell and self._links[worker].up:
            closing = CloseSequence(request.seq_id, request.incarnation)
            self._links[worker].send(CloseSequences((closing,)))

    def forget(self, worker: int) -> list[int]:
        """The sequences of a worker that was lost; they are at no worker now."""
        lost = [seq_id for seq_id, home in self._homes.items() if home == worker]
        for seq_id in lost:
            del self._homes[seq_id]
        del self._loads[worker]
        return lost

    def badly_off(self) -> list[int]:
        """The sequences of workers that are ill, while there is one that is well."""
        if not self.count_well():
            return []
        return [seq_id for seq_id, home in self._homes.items() if self._links[home].ill]

    def send_guesses(self, worker: int, nodes: bytes) -> None:
        """Pass a serialized NodeBatch on to the worker that the drafter made it for."""
        if worker < len(self._links):
            self._links[worker].send_guesses(nodes)

    def send_budget(self, worker: int, budget: VerifyBudget) -> None:
        """Cut to what the worker can do."""
        link = self._links[worker]
        if link.identity is not None:
            most = min(budget.max_nodes, link.identity.limits.max_nodes)
            link.send(replace(budget, max_nodes=most))

    def _served(self, but: int) -> ModelInfo | None:
        """The model of the workers that are up, ``but`` left out."""
        for link in self._links:
            if link.identity is not None and link.worker != but:
                return link.identity.model
        return None

    def _newest(self) -> WorkerIdentity:
        return next(reversed(self._known.values()))
