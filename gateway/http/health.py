"""GET /health: 200 if answers can be given, 503 if not."""

from __future__ import annotations

from aiohttp import web

from foredraft.wire.errors import RETRY_SECONDS, Unavailable
from gateway.intake import Intake


class HealthEndpoint:
    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def get(self, request: web.Request) -> web.Response:
        if not self._intake.ready:
            raise Unavailable("the target model is not connected", RETRY_SECONDS)
        return web.json_response({"status": "ok"})
