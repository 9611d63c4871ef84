"""The routes of the HTTP door, and what every request passes on its way to one."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client.aiohttp import make_aiohttp_handler

from foredraft.wire.channel import MAX_REQUEST_BYTES
from gateway.http.body import Bodies
from gateway.http.errors import errors_to_responses, library_errors_to_json
from gateway.http.generation import Generation
from gateway.http.health import HealthEndpoint
from gateway.http.models import Models
from gateway.http.tokenize import Tokenize
from gateway.http.tracing import name_trace
from gateway.intake import Intake
from gateway.metrics import Metrics
from gateway.plan import Planner
from gateway.tokenizer import Tokenizer


def make_app(
    intake: Intake,
    planner: Planner,
    tokenizer: Tokenizer,
    metrics: Metrics,
    guards: Sequence[Middleware] = (),
) -> web.Application:
    """``guards`` see a request before its handler and may refuse it by raising, as handlers do.

    The place for API keys: what they raise becomes OpenAI's error body.
    """
    app = web.Application(
        client_max_size=MAX_REQUEST_BYTES,
        middlewares=[errors_to_responses, *guards],
    )
    bodies = Bodies()
    generation = Generation(intake, tokenizer, bodies)
    models = Models(intake)
    tokenize = Tokenize(intake, planner, tokenizer, bodies)
    app.add_routes(
        [
            web.post("/v1/completions", generation.complete),
            web.post("/v1/chat/completions", generation.chat),
            web.get("/v1/models", models.list),
            web.get("/v1/models/{model:.+}", models.retrieve),
            web.post("/tokenize", tokenize.tokenize),
            web.post("/detokenize", tokenize.detokenize),
            web.get("/health", HealthEndpoint(intake).get),
            web.get("/metrics", make_aiohttp_handler(metrics.registry)),
        ]
    )

    async def count(request: web.Request, response: web.StreamResponse) -> None:
        resource = request.match_info.route.resource
        path = "unknown" if resource is None else resource.canonical
        metrics.responses.labels(path, response.status).inc()

    app.on_response_prepare.extend([library_errors_to_json, name_trace, count])
    return app
