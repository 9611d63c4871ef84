"""What is shown to Prometheus: every name of a metric stands in this file."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)

from foredraft.params import FinishReason
from foredraft.wire.messages import Commit
from gateway.counts import Count, Distribution

# Seconds: from a token of a small model to a long answer of a large one.
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0)
_REQUEST_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# From the choice of a few nodes to the pass of a large model.
_STEP_SECONDS = (2e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_NODES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

CANCELLED = FinishReason.CANCELLED.name.lower()
ERROR = "error"


class Metrics:
    """One registry for the whole gateway, whichever door a request came through.

    A choice counts as a request. Waiting ends with a request's first commit, so the prefill of
    its prompt belongs to it.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.running = self._gauge("foredraft_requests_running", "Requests being decoded")
        self.waiting = self._gauge("foredraft_requests_waiting", "Requests without a first commit")
        self.requests = self._counter(
            "foredraft_requests", "Requests that ended, by finish reason", ["finish_reason"]
        )
        self.prompt_tokens = self._counter("foredraft_prompt_tokens", "Tokens of prompts")
        self.tokens = Count("foredraft_generation_tokens", "Tokens delivered", self.registry)
        self.steps = Count(
            "foredraft_steps", "Steps, counted once for each request in it", self.registry
        )
        self.verified = Count(
            "foredraft_verified_nodes", "Guesses that steps verified", self.registry
        )
        self.accepted = self._counter(
            "foredraft_accepted_tokens", "Guesses delivered, by depth in the tree", ["depth"]
        )
        self.first_token = self._histogram(
            "foredraft_time_to_first_token_seconds", "From start to first commit", _REQUEST_SECONDS
        )
        self.between_tokens = Distribution(
            "foredraft_inter_token_latency_seconds",
            "Time between commits, shared among a commit's tokens",
            _TOKEN_SECONDS,
            self.registry,
        )
        self.latency = self._histogram(
            "foredraft_request_latency_seconds", "From start to end", _REQUEST_SECONDS
        )
        self.responses = self._counter(
            "foredraft_http_responses", "HTTP responses, by route and status", ["path", "status"]
        )
        self.workers_up = self._gauge(
            "foredraft_workers_up", "Workers that are connected and serve", ["kind"]
        )
        self._add_steps()
        self._add_guesses()
        self._add_decisions()

    def _add_steps(self) -> None:
        """What workers tell with every step, and with every message of guesses."""
        self.step_seconds = self._histogram(
            "foredraft_step_seconds", "Time of a step, by what it went to", _STEP_SECONDS, ["part"]
        )
        self.hold_limit = self._histogram(
            "foredraft_step_hold_limit_seconds", "Longest hold that would have paid", _STEP_SECONDS
        )
        self.step_nodes = self._histogram("foredraft_step_nodes", "Guesses in a step", _NODES)
        self.kv_blocks = self._gauge("foredraft_kv_blocks", "Blocks of KV memory", ["worker"])
        self.free_kv_blocks = self._gauge(
            "foredraft_free_kv_blocks", "Those that are free, as last told", ["worker"]
        )

        self.draft_seconds = self._counter(
            "foredraft_draft_seconds", "Time that drafters worked, by what for", ["part"]
        )
        self.draft_passes = self._counter("foredraft_draft_passes", "Passes of draft models")

    def _add_guesses(self) -> None:
        """Predicted beside real acceptance, of guesses whose parents were committed."""
        self.guesses = self._counter(
            "foredraft_draft_guesses",
            "Guesses that were judged, by the lower end of their tenth of confidence",
            ["source", "bin"],
        )
        self.predicted = self._counter(
            "foredraft_draft_predicted", "Sum of their confidences", ["source", "bin"]
        )
        self.right = self._counter(
            "foredraft_draft_accepted", "Those that were committed", ["source", "bin"]
        )
        self.depth_guesses = self._counter(
            "foredraft_draft_depth_guesses",
            "Guesses that were judged, by the depth at which they were made",
            ["source", "depth"],
        )
        self.depth_right = self._counter(
            "foredraft_draft_depth_accepted", "Those that were committed", ["source", "depth"]
        )

    def _add_decisions(self) -> None:
        """What the gateway tells the workers to do."""
        self.way = self._gauge(
            "foredraft_way", "1 for the way in which steps are run, else 0", ["worker", "way"]
        )
        self.drafting = self._gauge(
            "foredraft_drafting", "1 while there is a drafter, else 0", ["worker"]
        )
        self.max_nodes = self._gauge(
            "foredraft_budget_max_nodes", "Most guesses in a step", ["worker"]
        )
        self.max_hold = self._gauge(
            "foredraft_budget_max_hold_seconds",
            "Longest time for which a step may be held",
            ["worker"],
        )
        self.tokens_per_ms = self._gauge(
            "foredraft_tokens_per_ms", "What a millisecond of waiting for guesses costs", ["worker"]
        )
        self.tokens_per_row = self._gauge(
            "foredraft_tokens_per_row",
            "What a guess must bring where steps wait for guesses",
            ["worker"],
        )
        self.draft_max_nodes = self._gauge(
            "foredraft_draft_max_nodes", "Most guesses in a tree", ["worker"]
        )
        self.draft_max_depth = self._gauge(
            "foredraft_draft_max_depth", "Longest path of guesses", ["worker"]
        )
        self.draft_min_survival = self._gauge(
            "foredraft_draft_min_survival", "Guesses that are less likely are not made", ["worker"]
        )
        self.draft_ahead_survival = self._gauge(
            "foredraft_draft_ahead_survival",
            "The same while the target is at work; 0: nothing is drafted ahead",
            ["worker"],
        )

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: Iterable[str] = ()
    ) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=buckets)


class RequestMeter:
    """Watches one request from its start to its end and adds to the metrics."""

    def __init__(self, metrics: Metrics, prompt_tokens: int) -> None:
        self._metrics = metrics
        self._began = self._last = time.monotonic()
        self._decoding = False
        self._ended = False
        metrics.waiting.inc()
        metrics.prompt_tokens.inc(prompt_tokens)

    def delivered(self, commit: Commit, kept: int) -> None:
        """A commit came, of which the first ``kept`` tokens belong to the answer."""
        metrics, now = self._metrics, time.monotonic()
        if not self._decoding:
            self._decoding = True
            metrics.waiting.dec()
            metrics.running.inc()
            metrics.first_token.observe(now - self._began)
        elif kept:
            metrics.between_tokens.observe((now - self._last) / kept, kept)
        self._last = now
        metrics.tokens.inc(kept)
        metrics.steps.inc()
        metrics.verified.inc(commit.verified)
        for depth in range(min(commit.accepted, kept)):
            metrics.accepted.labels(depth + 1).inc()

    def end(self, reason: str) -> None:
        """Only the first end counts."""
        if self._ended:
            return
        self._ended = True
        metrics = self._metrics
        (metrics.running if self._decoding else metrics.waiting).dec()
        metrics.requests.labels(reason).inc()
        metrics.latency.observe(time.monotonic() - self._began)
