"""What the workers are allowed and told: the gateway's decisions, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foredraft.config import GatewayConfig
from foredraft.params import Schedule, Speculation
from foredraft.policy.balance import Way
from foredraft.wire.messages import (
    Commit,
    DraftBudget,
    StepResult,
    VerifyBudget,
    WorkerIdentity,
)
from gateway.balancer import Balancer
from gateway.draft_pool import DraftPool
from gateway.relay_meter import RelayMeter
from gateway.request import Request
from gateway.verify_pool import VerifyPool

# A guess that is less likely than this is not worth a row of the target's batch.
_MIN_SURVIVAL = 0.05
# While the target verifies, the drafter goes on with what is likely enough to come next.
_AHEAD_SURVIVAL = 0.01

# A drafter that is silent for longer has failed; where steps need not be serial it is too slow.
_SERIAL_HOLD_US, _SERIAL_TRIAL_HOLD_US = 2_000_000, 100_000

_SCHEDULES = {
    Way.HELD: Schedule.HELD,
    Way.FREE: Schedule.FREE,
    Way.SERIAL: Schedule.SERIAL,
    Way.PLAIN: Schedule.FREE,
}
_FIXED_WAYS = {schedule: way for way, schedule in _SCHEDULES.items() if way is not Way.PLAIN}


class Budgets:
    """Each verify worker has its own way of running steps; `auto` lets a balancer choose it."""

    def __init__(
        self, config: GatewayConfig, verify: VerifyPool, draft: DraftPool, meter: RelayMeter
    ) -> None:
        self._config = config
        self._verify = verify
        self._draft = draft
        self._meter = meter
        self._balancers: dict[int, Balancer] = {}  # by verify worker that is up
        self._ways: dict[int, Way] = {}
        self._drafters: dict[int, DraftBudget] = {}  # what each may do where guesses are wanted

    def verify_up(self, worker: int) -> None:
        self._ways[worker] = Way.HELD
        if self._config.speculation is Speculation.OFF:
            self._ways[worker] = Way.PLAIN
        elif self._config.schedule is Schedule.AUTO:
            self._balancers[worker] = Balancer()
        else:
            self._ways[worker] = _FIXED_WAYS[self._config.schedule]
        self._tell_all()

    def verify_down(self, worker: int) -> None:
        self._ways.pop(worker, None)
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
        balancer = self._balancers.get(worker)
        if balancer is None or not self._drafters:
            return
        speculating = [c for r, c in committed if r.plan.speculation is not Speculation.OFF]
        way = balancer.stepped(
            sequences=len(committed),
            speculating=len(speculating),
            tokens=sum(len(commit.tokens) for commit in speculating),
            promised=step.promised,
            period_ms=step.timings.period_us / 1000,
            pass_ms=step.timings.forward_us / 1000,
        )
        if way is not self._ways[worker]:
            self._ways[worker] = way
            self._tell_all()

    def _tell_all(self) -> None:
        for worker, way in self._ways.items():
            budget = VerifyBudget(
                max_nodes=0 if way is Way.PLAIN else self._config.max_nodes,
                max_hold_us=self._max_hold_us(way),
                drafting=bool(self._drafters),
                schedule=_SCHEDULES[way],
            )
            self._verify.send_budget(worker, budget)
            self._meter.decided(worker, way, budget)
        for worker, full in self._drafters.items():
            draft_budget = self._needed(full)
            self._draft.send_budget(worker, draft_budget)
            self._meter.draft_decided(worker, draft_budget)

    def _max_hold_us(self, way: Way) -> int:
        if way is not Way.SERIAL:
            return self._config.max_hold_us
        chosen = self._config.schedule is Schedule.AUTO
        return _SERIAL_TRIAL_HOLD_US if chosen else _SERIAL_HOLD_US

    def _needed(self, full: DraftBudget) -> DraftBudget:
        """A drafter serves all verify workers: it rests only where none wants guesses."""
        ways = set(self._ways.values())
        if ways <= {Way.PLAIN}:
            return replace(full, max_nodes_per_sequence=0)
        if ways <= {Way.PLAIN, Way.SERIAL}:
            return replace(full, ahead_survival=0.0)
        return full
