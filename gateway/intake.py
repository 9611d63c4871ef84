"""What every door does with a request: places, plans, start, end. One for all doors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product

from foredraft.request import GenerateRequest
from foredraft.wire.messages import ModelInfo
from gateway.access import NOBODY
from gateway.admission import Admission
from gateway.metrics import CANCELLED, ERROR, Metrics, RequestMeter
from gateway.plan import Plan, Planner, check_prompt_logprobs
from gateway.relay import Relay
from gateway.request import Request
from gateway.trace import Trace

_TOGETHER = 8  # so many are opened in one turn of the event loop, and so in one message


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

    @property
    def most_sequences(self) -> int:
        """More are never inside at a time, whoever asks for them."""
        return self._admission.limit

    def model(self) -> ModelInfo:
        """The served model.

        Raises:
            Unavailable: no target has been seen yet.
        """
        return self._relay.target().model

    @asynccontextmanager
    async def running(
        self,
        asked: Sequence[GenerateRequest],
        trace: Trace,
        choices: int = 1,
        tenant: int = NOBODY,
    ) -> AsyncIterator[list[Request]]:
        """Each request ``choices`` times, from admission to where nobody listens any more.

        Choices of one request stand side by side; they have one seed and differ in the number
        of the choice. While there are many, the event loop goes on with what others wait for.
        ``tenant`` is what `Access.begin` says of the caller.

        Raises:
            InvalidField, Unsupported, Overloaded, Unavailable: they cannot run.
        """
        model = self.model()
        with trace.running(asked[0]), self._admission.enter(len(asked) * choices):
            plans: list[Plan] = []
            for each in asked:
                if plans:
                    await asyncio.sleep(0)
                plans.append(await self._planner.plan(each, model))
            check_prompt_logprobs(choices * sum(plan.prompt_logprobs for plan in plans))
            requests: list[Request] = []
            try:
                for plan, choice in product(plans, range(choices)):
                    if requests and len(requests) % _TOGETHER == 0:
                        await asyncio.sleep(0)
                    requests.append(self._start(replace(plan, choice=choice, tenant=tenant), trace))
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
