"""What the relay sees of the workers, and what it tells them to do, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import Gauge

from foredraft.policy.balance import Way
from foredraft.policy.pace import Prices
from foredraft.wire.messages import (
    OUTCOME_BINS,
    DraftBudget,
    DraftTimings,
    GuessOutcomes,
    StepResult,
    VerifyBudget,
    WorkerIdentity,
)
from gateway.metrics import Metrics

_MICROSECOND = 1e-6


class RelayMeter:
    """Workers are named by their number in the order of the gateway's settings."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # Looked up once: steps come every few milliseconds.
        part = metrics.step_seconds.labels
        self._held, self._prepare = part("held"), part("prepare")
        self._forward, self._sample, self._commit = part("forward"), part("sample"), part("commit")
        self._free: dict[int, Gauge] = {}  # by verify worker
        drafting = metrics.draft_seconds.labels
        self._suffix, self._model = drafting("suffix"), drafting("model")

    def count_workers(self, kind: str, up: Callable[[], int]) -> None:
        """``up`` is asked whenever somebody looks."""
        self._metrics.workers_up.labels(kind).set_function(up)

    def verify_up(self, worker: int, identity: WorkerIdentity) -> None:
        blocks = identity.limits.total_blocks
        self._metrics.kv_blocks.labels(worker).set(blocks)
        self._free[worker] = self._metrics.free_kv_blocks.labels(worker)
        self._free[worker].set(blocks)

    def verify_down(self, worker: int) -> None:
        del self._free[worker]
        self._metrics.kv_blocks.remove(worker)
        self._metrics.free_kv_blocks.remove(worker)
        for way in Way:
            self._metrics.way.remove(worker, way.value)
        for gauge in (
            self._metrics.drafting,
            self._metrics.max_nodes,
            self._metrics.max_hold,
            self._metrics.tokens_per_ms,
            self._metrics.tokens_per_row,
        ):
            gauge.remove(worker)

    def stepped(self, worker: int, step: StepResult) -> None:
        timings = step.timings
        self._held.observe(timings.held_us * _MICROSECOND)
        self._prepare.observe(timings.prepare_us * _MICROSECOND)
        self._forward.observe(timings.forward_us * _MICROSECOND)
        self._sample.observe(timings.sample_us * _MICROSECOND)
        self._commit.observe(timings.commit_us * _MICROSECOND)
        self._metrics.hold_limit.observe(timings.hold_limit_us * _MICROSECOND)
        self._metrics.step_nodes.observe(sum(commit.verified for commit in step.commits))
        self._free[worker].set(step.free_blocks)

    def drafted(self, timings: DraftTimings) -> None:
        """What a drafter has done since its message before."""
        self._suffix.inc(timings.suffix_us * _MICROSECOND)
        self._model.inc(timings.model_us * _MICROSECOND)
        self._metrics.draft_passes.inc(timings.model_passes)

    def judged(self, outcomes: Iterable[GuessOutcomes]) -> None:
        """What became of guesses since the message before that told it."""
        metrics = self._metrics
        for row in outcomes:
            source, tenth = row.source.name.lower(), row.bin / OUTCOME_BINS
            metrics.guesses.labels(source, tenth).inc(row.guesses)
            metrics.predicted.labels(source, tenth).inc(row.predicted)
            metrics.right.labels(source, tenth).inc(row.accepted)
            metrics.depth_guesses.labels(source, row.depth).inc(row.guesses)
            metrics.depth_right.labels(source, row.depth).inc(row.accepted)

    def priced(self, worker: int, prices: Prices) -> None:
        """What drafters are told of one verify worker's time."""
        self._metrics.tokens_per_ms.labels(worker).set(prices.tokens_per_ms)
        self._metrics.tokens_per_row.labels(worker).set(prices.tokens_per_row)

    def decided(self, worker: int, way: Way, budget: VerifyBudget) -> None:
        """What one verify worker is told."""
        metrics = self._metrics
        for other in Way:
            metrics.way.labels(worker, other.value).set(other is way)
        metrics.drafting.labels(worker).set(budget.drafting)
        metrics.max_nodes.labels(worker).set(budget.max_nodes)
        metrics.max_hold.labels(worker).set(budget.max_hold_us * _MICROSECOND)

    def draft_decided(self, worker: int, budget: DraftBudget) -> None:
        """What one draft worker is told."""
        metrics = self._metrics
        metrics.draft_max_nodes.labels(worker).set(budget.max_nodes_per_sequence)
        metrics.draft_max_depth.labels(worker).set(budget.max_depth)
        metrics.draft_min_survival.labels(worker).set(budget.min_survival)
        metrics.draft_ahead_survival.labels(worker).set(budget.ahead_survival)

    def draft_down(self, worker: int) -> None:
        metrics = self._metrics
        for gauge in (
            metrics.draft_max_nodes,
            metrics.draft_max_depth,
            metrics.draft_min_survival,
            metrics.draft_ahead_survival,
        ):
            gauge.remove(worker)
