"""What the workers are allowed and told: the gateway's decisions, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from foredraft.config import GatewayConfig
from foredraft.params import Schedule, Speculation
from foredraft.policy.balance import FIRST_WAY, Way
from foredraft.policy.pace import Prices
from foredraft.wire.messages import (
    Commit,
    DraftBudget,
    StepResult,
    VerifyBudget,
    WorkerIdentity,
)
from gateway.balancer import Balancer
from gateway.draft_pool import DraftPool
from gateway.pricing import Pricing
from gateway.relay_meter import RelayMeter
from gateway.request import Request
from gateway.verify_pool import VerifyPool

# Where nobody waits for guesses: one that is less likely is not worth a row of the target's batch.
_MIN_SURVIVAL = 0.05
# While the target verifies, the drafter goes on with what is likely enough to come next.
_AHEAD_SURVIVAL = 0.01

_SERIAL_HOLD_US = 2_000_000  # a drafter that is silent for longer has failed

_SCHEDULES = {
    Way.HELD: Schedule.HELD,
    Way.FREE: Schedule.FREE,
    Way.SERIAL: Schedule.SERIAL,
    Way.PLAIN: Schedule.FREE,
}
_WAITING = {Way.HELD, Way.SERIAL}  # in which time for drafting is time that the target loses
_FIXED_WAYS = {schedule: way for way, schedule in _SCHEDULES.items() if way is not Way.PLAIN}


class Budgets:
    """Each verify worker has its own way of running steps; `auto` lets a balancer choose it.

    Drafters are awake for it before it runs steps with guesses. ``live``: requests by seq_id.
    """

    def __init__(
        self,
        config: GatewayConfig,
        verify: VerifyPool,
        draft: DraftPool,
        live: Mapping[int, Request],
        meter: RelayMeter,
    ) -> None:
        self._config = config
        self._verify = verify
        self._draft = draft
        self._live = live
        self._meter = meter
        self._balancers: dict[int, Balancer] = {}  # by verify worker that is up
        self._ways: dict[int, Way] = {}
        self._awaited: dict[int, Way] = {}  # what drafters are awake for
        self._pricings: dict[int, Pricing] = {}
        self._drafters: dict[int, DraftBudget] = {}  # what each may do where guesses are wanted

    def verify_up(self, worker: int) -> None:
        self._ways[worker] = FIRST_WAY
        if self._config.speculation is Speculation.OFF:
            self._ways[worker] = Way.PLAIN
        elif self._config.schedule is Schedule.AUTO:
            self._balancers[worker] = Balancer()
        else:
            self._ways[worker] = _FIXED_WAYS[self._config.schedule]
        self._await(worker, self._ways[worker])
        self._tell_all()

    def verify_down(self, worker: int) -> None:
        self._ways.pop(worker, None)
        self._awaited.pop(worker, None)
        self._pricings.pop(worker, None)
        self._balancers.pop(worker, None)

    def draft_up(self, worker: int, identity: WorkerIdentity) -> None:
        limits, target = identity.limits, self._verify.target().limits
        self._drafters[worker] = DraftBudget(
            max_nodes_per_sequence=min(self._config.max_nodes, limits.max_nodes, target.max_nodes),
            max_depth=min(limits.max_depth, target.max_depth),
            min_survival=_MIN_SURVIVAL,
            ahead_survival=_AHEAD_SURVIVAL,
        )
        self._tell_all()

    def draft_down(self, worker: int) -> None:
        self._drafters.pop(worker, None)
        self._tell_all()

    def stepped(
        self, worker: int, step: StepResult, committed: Sequence[tuple[Request, Commit]]
    ) -> None:
        """A worker has made a step; what it brought may change how the next ones are run."""
        if not self._drafters:
            return
        balancer, way = self._balancers.get(worker), self._ways[worker]
        if balancer is not None:
            self._balance(balancer, step, committed)
            if balancer.way is not way or balancer.awaited is not self._awaited[worker]:
                self._ways[worker] = balancer.way
                self._await(worker, balancer.awaited)
                self._tell_all()
                return
        if self._awaited[worker] is not Way.PLAIN:
            self._price(worker, step, committed)

    def _balance(
        self, balancer: Balancer, step: StepResult, committed: Sequence[tuple[Request, Commit]]
    ) -> None:
        """Plain steps bring a token each: whoever may be drafted for, the steps are the same."""
        if balancer.awaited is Way.PLAIN and not step.promised:
            count = tokens = len(committed)
            if not any(r.plan.speculation is not Speculation.OFF for r, _ in committed):
                return
        else:
            own = [c for r, c in committed if r.plan.speculation is not Speculation.OFF]
            count, tokens = len(own), sum(len(commit.tokens) for commit in own)
        balancer.stepped(
            sequences=len(committed),
            speculating=count,
            tokens=tokens,
            promised=step.promised,
            period_ms=step.timings.period_us / 1000,
            plain_ms=_plain_ms(step),
        )

    def _price(
        self, worker: int, step: StepResult, committed: Sequence[tuple[Request, Commit]]
    ) -> None:
        """Follow what a millisecond of the worker is worth, while somebody guesses for it.

        Steps of sequences that nobody guesses for say nothing of that.
        """
        if all(request.plan.speculation is Speculation.OFF for request, _ in committed):
            return
        timings, pricing = step.timings, self._pricings[worker]
        balancer = self._balancers.get(worker)
        known = 0.0 if balancer is None else balancer.plain_rate
        tokens = sum(len(commit.tokens) for _, commit in committed)
        pricing.stepped(
            tokens,
            len(committed),
            period_ms=timings.period_us / 1000,
            row_ms=timings.row_us / 1000,
            plain_ms=1.0 / known if known > 0.0 else _plain_ms(step),
        )
        if self._ways[worker] in _WAITING and pricing.moved:
            self._tell_drafters()

    def _await(self, worker: int, way: Way) -> None:
        """Drafters work for that way from now on."""
        before, self._awaited[worker] = self._awaited.get(worker), way
        if way is Way.PLAIN:
            self._draft.rest(worker)
        elif before in (None, Way.PLAIN):
            self._pricings[worker] = Pricing()  # nobody has followed it meanwhile
            own = [r for r in self._live.values() if r.verify_worker == worker]
            told = self._draft.wake(worker, own)
            if worker in self._balancers:
                self._balancers[worker].told(told)

    def _tell_all(self) -> None:
        for worker, way in self._ways.items():
            budget = VerifyBudget(
                max_nodes=0 if way is Way.PLAIN else self._config.max_nodes,
                max_hold_us=self._max_hold_us(way),
                drafting=bool(self._drafters),
                schedule=self._schedule(way),
            )
            self._verify.send_budget(worker, budget)
            self._meter.decided(worker, way, budget)
        self._tell_drafters()

    def _tell_drafters(self) -> None:
        prices = [self._prices(worker) for worker in range(max(self._ways, default=-1) + 1)]
        per_ms = tuple(price.tokens_per_ms for price in prices)
        per_row = tuple(price.tokens_per_row for price in prices)
        for worker in self._ways:
            self._meter.priced(worker, prices[worker])
        for worker, full in self._drafters.items():
            draft_budget = replace(self._needed(full), tokens_per_ms=per_ms, tokens_per_row=per_row)
            self._draft.send_budget(worker, draft_budget)
            self._meter.draft_decided(worker, draft_budget)

    def _prices(self, worker: int) -> Prices:
        """None where no step waits for guesses, or no such worker is there."""
        if self._awaited.get(worker) not in _WAITING:
            return Prices()
        return self._pricings[worker].tell()

    def _schedule(self, way: Way) -> Schedule:
        """Who asked for serial steps gets them; who left it open waits while that pays."""
        if way is Way.SERIAL and self._config.schedule is Schedule.AUTO:
            return Schedule.HELD
        return _SCHEDULES[way]

    def _max_hold_us(self, way: Way) -> int:
        serial = self._schedule(way) is Schedule.SERIAL
        return _SERIAL_HOLD_US if serial else self._config.max_hold_us

    def _needed(self, full: DraftBudget) -> DraftBudget:
        """A drafter serves all verify workers: it rests only where none wants guesses."""
        ways = set(self._awaited.values())
        if ways <= {Way.PLAIN}:
            return replace(full, max_nodes_per_sequence=0)
        if ways <= {Way.PLAIN, Way.SERIAL}:
            return replace(full, ahead_survival=0.0)
        return full


def _plain_ms(step: StepResult) -> float:
    """What the step would have taken without guesses: not held, and with no rows but roots.

    At least half of what it took: what the next row adds says too much of many rows.
    """
    timings = step.timings
    nodes = sum(commit.verified for commit in step.commits)
    took_us = max(0, timings.period_us - timings.held_us)
    return max(took_us / 2, took_us - nodes * timings.row_us) / 1000
