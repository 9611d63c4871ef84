"""The middle of the triangle: steps go from the target to requests and drafter, guesses from the
drafter to the target. It holds the live requests and runs no model.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence

import grpc

from foredraft.config import GatewayConfig
from foredraft.params import Speculation
from foredraft.wire.errors import RETRY_SECONDS, Failed, Unavailable, code_from_number
from foredraft.wire.messages import (
    Commit,
    NodeBlocks,
    SequenceError,
    StepResult,
    WorkerIdentity,
)
from gateway.budgets import Budgets
from gateway.draft_pool import DraftPool
from gateway.plan import Plan
from gateway.relay_meter import RelayMeter
from gateway.request import Request
from gateway.time_limit import TimeLimit
from gateway.tokenizer import Tokenizer
from gateway.trace import Trace
from gateway.verify_pool import VerifyPool

logger = logging.getLogger(__name__)

# A request that ends every worker it is given to must not end them all.
_MOST_IN_VAIN = 2


class Relay:
    """``serving`` is told whether answers can be given, whenever that changes."""

    def __init__(
        self,
        config: GatewayConfig,
        tokenizer: Tokenizer,
        meter: RelayMeter,
        serving: Callable[[bool], None],
    ) -> None:
        self._config = config
        self._decode: Callable[[Sequence[int]], str] = tokenizer.decode
        self._serving = serving
        self._verify = VerifyPool(config.verify, tokenizer.identity.hash, self)
        drafting = config.speculation is not Speculation.OFF
        self._draft = DraftPool(config.draft if drafting else (), self)
        self._live: dict[int, Request] = {}
        self._budgets = Budgets(config, self._verify, self._draft, self._live, meter)
        self._meter = meter
        meter.count_workers("verify", self._verify.count_well)
        meter.count_workers("draft", self._draft.count_up)
        self._running = TimeLimit(config.request_seconds, self._expire)
        self._stranded = TimeLimit(config.resume_seconds, self._give_up)
        self._ids = itertools.count(1)
        # Workers may still hold sequences of a gateway that was here before.
        self._incarnation = 1 + secrets.randbelow(2**31)

    @property
    def ready(self) -> bool:
        """There is a stream to a verify worker: answers can be given."""
        return self._verify.up

    @property
    def max_sequences(self) -> int:
        """How many sequences the verify workers run at a time.

        Raises:
            Unavailable: none of them has been seen yet.
        """
        self.target()
        return self._verify.max_sequences

    async def run(self) -> None:
        """Keep the streams to the workers up until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._verify.run())
            await self._verify.seen.wait()
            tasks.create_task(self._draft.run())

    def target(self) -> WorkerIdentity:
        """A verify worker, as it was seen last.

        Raises:
            Unavailable: none has been seen yet.
        """
        return self._verify.target()

    def start(self, plan: Plan, trace: Trace) -> Request:
        """Open a sequence at a verify worker and a drafter.

        Raises:
            Unavailable: there is no stream to a verify worker.
        """
        request = Request(next(self._ids), self._incarnation, plan, self._decode, trace)
        self._verify.open(request)
        self._live[request.seq_id] = request
        self._running.add(request)
        self._draft.open(request)
        trace.opened(plan, self.target().model.model_id, request.incarnation)
        return request

    def close(self, request: Request) -> None:
        """The client wants no more: free what the workers hold. Harmless when it has ended."""
        self._retire(request, at_verify=True)

    def shut_down(self) -> None:
        """End what still runs, and say why."""
        for request in list(self._live.values()):
            request.fail(Unavailable("the gateway is shutting down", RETRY_SECONDS))
            self._retire(request, at_verify=True)

    def verify_up(self, worker: int, identity: WorkerIdentity) -> None:
        self._verify.learn(worker, identity)
        self._meter.verify_up(worker, identity)
        self._budgets.verify_up(worker)
        self._resume(self._stranded.take_all())
        self._relieve()
        self._serving(True)

    def verify_down(self, worker: int) -> None:
        """Its sequences go on at another worker, now or as soon as there is one."""
        self._meter.verify_down(worker)
        self._budgets.verify_down(worker)
        lost = [self._live[seq_id] for seq_id in self._verify.forget(worker)]
        if self._verify.up:
            self._resume(lost)
            return
        self._serving(False)
        for request in lost:
            self._stranded.add(request)

    def verify_health_changed(self, worker: int) -> None:
        """One that is ill may be slow or hang; nobody here can tell. While it is all there is, its
        sequences wait: it goes on, or its stream ends.
        """
        self._relieve()

    def step_done(self, worker: int, step: StepResult) -> None:
        arrived = time.perf_counter()
        committed = [
            (request, commit)
            for commit in step.commits
            if (request := self._journaled(commit)) is not None
        ]
        # First of all: the drafters work on while texts are made here. What has ended needs no more
        # guesses, so its commit can wait for the message that closes it.
        going_on = [(r, c) for r, c in committed if c.finish is None]
        self._draft.follow(worker, going_on, told=step.drafter_told)
        self._budgets.stepped(worker, step, committed)
        for request, commit in committed:
            self._deliver(request, commit)
            request.trace.stepped(step, commit, arrived)
        self._meter.stepped(worker, step)

    def sequences_failed(self, errors: tuple[SequenceError, ...]) -> None:
        for error in errors:
            request = self._find(error.seq_id, error.incarnation)
            if request is not None:
                request.fail(Failed(code_from_number(error.code), error.message))
                self._retire(request, at_verify=False)

    def draft_up(self, worker: int, identity: WorkerIdentity) -> None:
        self._budgets.draft_up(worker, identity)
        self._draft.adopt(self._live.values())

    def draft_down(self, worker: int) -> None:
        """Its sequences go to the other drafters, if there are any."""
        self._meter.draft_down(worker)
        for seq_id in self._draft.forget(worker):
            self._draft.open(self._live[seq_id])
        self._budgets.draft_down(worker)

    def guesses_came(self, message: NodeBlocks) -> None:
        for block in message.blocks:
            self._verify.send_guesses(block.verify_worker, block.nodes)
        self._meter.drafted(message.timings)
        self._meter.judged(message.outcomes)

    def _resume(self, requests: Iterable[Request]) -> None:
        """Open sequences again, as their journals stand, at workers that are up."""
        count = 0
        for request in requests:
            if request.begin_anew() > _MOST_IN_VAIN:
                self._give_up(request)
                continue
            self._verify.open(request)
            self._draft.open(request)
            count += 1
        if count:
            logger.warning("%d sequences go on at another verify stream", count)

    def _relieve(self) -> None:
        """Sequences leave workers that are ill for one that is well, if there is one."""
        badly_off = [self._live[seq_id] for seq_id in self._verify.badly_off()]
        leaving = [request for request in badly_off if not request.settled]
        for request in leaving:
            self._verify.close(request, tell=True)
            request.leave()
            self._verify.open(request)
            self._draft.open(request)
        if leaving:
            logger.warning("%d sequences leave a verify worker that does not serve", len(leaving))

    def _give_up(self, request: Request) -> None:
        request.fail(Unavailable("the target model was lost", RETRY_SECONDS))
        self._retire(request, at_verify=False)

    def _expire(self, request: Request) -> None:
        limit = f"an answer may take {self._config.request_seconds:g} s"
        request.fail(Failed(grpc.StatusCode.DEADLINE_EXCEEDED, limit))
        self._retire(request, at_verify=True)

    def _find(self, seq_id: int, incarnation: int) -> Request | None:
        request = self._live.get(seq_id)
        return request if request is not None and request.incarnation == incarnation else None

    def _journaled(self, commit: Commit) -> Request | None:
        """The request of a commit that continues its journal; others are late or doubled."""
        request = self._find(commit.seq_id, commit.incarnation)
        if request is None or request.journal.append(commit.position, commit.tokens):
            return request
        if commit.position > request.journal.position:
            request.fail(Unavailable("a step of the target was lost", RETRY_SECONDS))
            self._retire(request, at_verify=True)
        return None

    def _deliver(self, request: Request, commit: Commit) -> None:
        try:
            request.deliver(commit)
        except Exception as error:  # one answer is lost, its neighbours go on
            request.fail(error)
        if request.ended:
            self._retire(request, at_verify=commit.finish is None)

    def _retire(self, request: Request, *, at_verify: bool) -> None:
        """``at_verify``: it still holds it."""
        if self._live.pop(request.seq_id, None) is None:
            return
        self._running.discard(request)
        self._stranded.discard(request)
        request.trace.finished(request.finish, request.stats())
        self._verify.close(request, tell=at_verify)
        self._draft.close(request)
