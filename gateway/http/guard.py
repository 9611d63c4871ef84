"""API keys and rates at the HTTP door."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.access import Access

TENANT = web.RequestKey("tenant", int)  # of whoever may be answered with text
_OPEN = frozenset({"/health", "/metrics"})  # asked by machines of the operator
_RATED = frozenset({"/v1/completions", "/v1/chat/completions"})


def key_guard(access: Access) -> Middleware:
    """Refuses whoever may not ask, before anything of the request is read."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        authorization = request.headers.get("Authorization")
        if request.path in _RATED and request.method == "POST":
            request[TENANT] = await access.begin(authorization)
        elif request.path not in _OPEN:
            access.check(authorization)
        return await handler(request)

    return guard
