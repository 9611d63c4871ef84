"""What a call of the SDK can raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from foredraft.params import InvalidField
from foredraft.wire.errors import FIELD_KEY, RETRY_AFTER_KEY, TRACE_ID_KEY


class ForedraftError(Exception):
    """Base of all errors of a call. ``code`` is the name of a gRPC status."""

    def __init__(self, message: str, code: str, trace_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.trace_id = trace_id


class InvalidRequest(ForedraftError):
    """The request cannot be answered as it stands; ``field`` names the option at fault."""

    field: str | None = None


class Unsupported(ForedraftError):
    """The server does not do what ``field`` asks for."""

    field: str | None = None


class Unauthenticated(ForedraftError):
    """The server wants an API key and does not know the one that was given, if any."""


class Overloaded(ForedraftError):
    """A limit is reached; try again after ``retry_after`` seconds."""

    retry_after: float | None = None


class DeadlineExceeded(ForedraftError):
    """The answer was not complete within the timeout."""


class Unavailable(ForedraftError):
    """There is no server, or its model is not ready; ``retry_after`` as in `Overloaded`."""

    retry_after: float | None = None


class Internal(ForedraftError):
    """A fault of the server; its log has more under the incident in the message."""


_KINDS: dict[grpc.StatusCode, type[ForedraftError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,  # not by us: a server that stops ends its calls so
}


@contextmanager
def translated() -> Iterator[None]:
    """What gRPC and our own checks raise inside becomes an error of this module."""
    try:
        yield
    except grpc.RpcError as error:
        raise _from_rpc(error) from None
    except InvalidField as error:
        raise _from_field(error) from None


def not_reached(address: str, seconds: float) -> Unavailable:
    """The error of a server that does not answer."""
    message = f"no server answers at {address} within {seconds:g} s"
    return Unavailable(message, grpc.StatusCode.UNAVAILABLE.name)


def cut_short() -> Internal:
    """The error of a stream that ended without its last message."""
    return Internal("the server ended the stream too early", grpc.StatusCode.INTERNAL.name)


def _from_rpc(error: grpc.RpcError) -> ForedraftError:
    """The error of a call that ended with a status."""
    code = error.code()
    metadata: dict[str, Any] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    kind = _KINDS.get(code, Internal)
    translated = kind(error.details() or code.name, code.name, _text(metadata, TRACE_ID_KEY))
    if isinstance(translated, InvalidRequest | Unsupported):
        translated.field = _text(metadata, FIELD_KEY)
    retry_after = _text(metadata, RETRY_AFTER_KEY)
    if isinstance(translated, Overloaded | Unavailable) and retry_after is not None:
        translated.retry_after = int(retry_after) / 1000
    return translated


def _from_field(error: InvalidField) -> InvalidRequest:
    """The error of a request that was refused before it was sent."""
    translated = InvalidRequest(str(error), grpc.StatusCode.INVALID_ARGUMENT.name)
    translated.field = error.field
    return translated


def _text(metadata: dict[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) else None
