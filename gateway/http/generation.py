"""The two endpoints that answer: body, places, answer, whole or in events."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from foredraft.wire.messages import ModelInfo
from gateway.access import NOBODY
from gateway.http.answer import Answer
from gateway.http.body import Bodies
from gateway.http.bounds import Bounds, make_bounds
from gateway.http.chat import ChatAnswer
from gateway.http.chat_body import read_chat
from gateway.http.completion_body import read_completion
from gateway.http.completions import CompletionAnswer
from gateway.http.errors import HttpFault
from gateway.http.fields import Fields
from gateway.http.guard import TENANT
from gateway.http.options import Asked
from gateway.http.sse import send_events
from gateway.http.tracing import begin_trace
from gateway.intake import Intake
from gateway.tokenizer import Tokenizer


class Generation:
    """Its handlers end with their client: a request that nobody waits for is closed."""

    def __init__(self, intake: Intake, tokenizer: Tokenizer, bodies: Bodies) -> None:
        self._intake = intake
        self._bodies = bodies
        self._tokenizer = tokenizer

    async def complete(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, read_completion, CompletionAnswer)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, read_chat, ChatAnswer)

    async def _answer(
        self,
        request: web.Request,
        read: Callable[[Fields, Bounds], Asked],
        make: type[CompletionAnswer] | type[ChatAnswer],
    ) -> web.StreamResponse:
        trace = begin_trace(request)
        bounds = make_bounds(self._intake)
        asked = await self._bodies.read(request, lambda fields: read(fields, bounds))
        model_id = check_model(asked.model, self._intake.model())
        tenant = request.get(TENANT, NOBODY)
        running = self._intake.running(asked.requests, trace, asked.choices, tenant)
        async with running as requests:
            answer: Answer = make(asked, requests, model_id, self._tokenizer)
            if asked.streaming.on:
                return await send_events(request, answer.events())
            return web.json_response(text=await answer.whole())


def check_model(name: str, served: ModelInfo) -> str:
    """The id of the served model.

    Raises:
        HttpFault: another was asked for.
    """
    if name not in ("", served.model_id):
        message = f"the model {name[:200]!r} is not served; {served.model_id!r} is"
        raise HttpFault(404, message, "model_not_found", "model")
    return served.model_id
