"""What every door does with a request: places, plans, start, end. One for all doors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from foredraft.request import GenerateRequest
from foredraft.wire.messages import ModelInfo
from gateway.admission import Admission
from gateway.metrics import CANCELLED, ERROR, Metrics, RequestMeter
from gateway.plan import Plan, Planner
from gateway.relay import Relay
from gateway.request import Request
from gateway.trace import Trace


class Intake:
    def __init__(self, relay: Relay, planner: Planner, metrics: Metrics) -> None:
        self._relay = relay
        self._planner = planner
        self._metrics = metrics
        self._admission = Admission(lambda: relay.max_sequences)

    @property
    def ready(self) -> bool:
        """Answers can be given."""
        return self._relay.ready

    def model(self) -> ModelInfo:
        """The served model.

        Raises:
            Unavailable: no target has been seen yet.
        """
        return self._relay.target().model

    @asynccontextmanager
    async def running(
        self, asked: Sequence[GenerateRequest], trace: Trace, choices: int = 1
    ) -> AsyncIterator[list[Request]]:
        """Each request ``choices`` times, from admission to where nobody listens any more.

        Choices of one request stand side by side; they have one seed and differ in the number
        of the choice.

        Raises:
            InvalidField, Unsupported, Overloaded, Unavailable: they cannot run.
        """
        model = self.model()
        with trace.running(asked[0]), self._admission.enter(len(asked) * choices):
            plans = [await self._planner.plan(request, model) for request in asked]
            requests: list[Request] = []
            try:
                for plan in plans:
                    for choice in range(choices):
                        requests.append(self._start(replace(plan, choice=choice), trace))
                yield requests
            finally:
                for request in requests:
                    self._close(request)

    def _start(self, plan: Plan, trace: Trace) -> Request:
        request = self._relay.start(plan, trace)
        request.meter = RequestMeter(self._metrics, len(plan.prompt))
        return request

    def _close(self, request: Request) -> None:
        self._relay.close(request)
        if request.meter is not None:
            request.meter.end(ERROR if request.ended else CANCELLED)
