"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from foredraft.wire.messages import ModelInfo
from gateway.http.generation import check_model
from gateway.intake import Intake


class Models:
    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._created = int(time.time())

    async def list(self, request: web.Request) -> web.Response:
        data = [self._describe(self._intake.model())]
        return web.json_response({"object": "list", "data": data})

    async def retrieve(self, request: web.Request) -> web.Response:
        model = self._intake.model()
        check_model(request.match_info["model"], model)
        return web.json_response(self._describe(model))

    def _describe(self, model: ModelInfo) -> dict[str, Any]:
        return {
            "id": model.model_id,
            "object": "model",
            "created": self._created,
            "owned_by": "foredraft",
            "max_model_len": model.context_length,
        }
