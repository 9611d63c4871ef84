"""From exceptions to OpenAI's error body and its HTTP status."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from aiohttp import web

from foredraft.errors import ForedraftError
from foredraft.errors import Unsupported as RefusedByName
from foredraft.params import Unsupported
from foredraft.wire.errors import RETRY_SECONDS, describe

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_INVALID = "invalid_request_error"
_SERVER = "server_error"
_Code = grpc.StatusCode


class HttpFault(Exception):
    """A fault that only this door knows; its text is meant for the caller."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = ApiError(status, _INVALID, message, param, code)


@dataclass(frozen=True, slots=True)
class ApiError:
    """``retry_after`` is in seconds: when trying again is likely to help."""

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None

    def body(self) -> dict[str, Any]:
        """As the response holds it, and as an event of a stream that has begun."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> web.Response:
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return web.json_response(self.body(), status=self.status, headers=headers)


def malformed() -> HttpFault:
    return HttpFault(
        400, "this is no valid HTTP, or a line of its head is too long", "invalid_http"
    )


def encoding_unknown() -> HttpFault:
    text = "a body must be plain, or compressed with gzip or deflate"
    return HttpFault(415, text, "invalid_encoding")


# gRPC status -> HTTP status, type and code of the error. Any other is a fault of the server.
_KINDS: dict[_Code, tuple[int, str, str]] = {
    _Code.INVALID_ARGUMENT: (400, _INVALID, "invalid_value"),
    _Code.OUT_OF_RANGE: (400, _INVALID, "invalid_value"),
    _Code.FAILED_PRECONDITION: (400, _INVALID, "failed_precondition"),
    _Code.UNIMPLEMENTED: (400, _INVALID, "unsupported"),
    _Code.UNAUTHENTICATED: (401, "authentication_error", "invalid_api_key"),
    _Code.NOT_FOUND: (404, _INVALID, "not_found"),
    _Code.RESOURCE_EXHAUSTED: (429, "rate_limit_error", "overloaded"),
    _Code.UNAVAILABLE: (503, _SERVER, "unavailable"),
    _Code.DEADLINE_EXCEEDED: (504, _SERVER, "deadline_exceeded"),
}
_BY_STATUS = {
    404: "not_found",
    405: "method_not_allowed",
    417: "expectation_failed",
}


def api_error(error: Exception) -> ApiError:
    """What the caller may know about an exception."""
    if isinstance(error, HttpFault):
        return error.error
    if isinstance(error, web.HTTPException):
        kind = _INVALID if error.status < 500 else _SERVER
        return ApiError(error.status, kind, error.reason, None, _BY_STATUS.get(error.status))
    if isinstance(error, ForedraftError):
        param = error.field if isinstance(error, RefusedByName) else None
        error = Unsupported(param or "this")
    fault = describe(error)
    status, kind, code = _KINDS.get(fault.code, (500, _SERVER, "internal_error"))
    retry_after = fault.retry_after
    if status in (429, 503) and retry_after is None:
        retry_after = RETRY_SECONDS
    return ApiError(status, kind, fault.message, fault.field, code, retry_after)


async def library_errors_to_json(request: web.Request, response: web.StreamResponse) -> None:
    """Before a response begins: what the library answers before any handler is asked."""
    if isinstance(response, web.HTTPException):
        response.text = text = json.dumps(api_error(response).body())
        response.content_type = "application/json"
        response.headers["Content-Length"] = str(len(text))


@web.middleware
async def errors_to_responses(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The one place where exceptions of handlers become responses."""
    try:
        return await handler(request)
    except ConnectionError:
        raise  # nobody is there to be told
    except web.HTTPException as error:
        response = api_error(error).response()
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except Exception as error:
        return api_error(error).response()
