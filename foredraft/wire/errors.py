"""Faults and gRPC statuses: what a caller is told, and what stays inside.

Our own errors name a field or a limit and are passed on word for word. Any other exception may
carry a prompt or a path in its text, so the caller gets a fixed sentence and an incident id that
the log repeats beside the traceback.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass

import grpc

from foredraft.params import InvalidField, Unsupported

logger = logging.getLogger(__name__)

# Keys of the metadata that travels beside a status or an answer.
RETRY_AFTER_KEY = "retry-after-ms"
FIELD_KEY = "field"
TRACE_ID_KEY = "trace-id"
SEED_KEY = "seed"

RETRY_SECONDS = 1.0  # what a caller that is turned away is told to wait


class BadMessage(InvalidField):
    """A message of a peer does not follow the contract."""


class StatusError(Exception):
    """A fault whose text is meant for the caller.

    ``retry_after`` is in seconds: when trying again is likely to help.
    """

    code = grpc.StatusCode.INTERNAL

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(StatusError):
    """A limit is reached; it is named in the message."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unavailable(StatusError):
    """A worker that the request needs is not there."""

    code = grpc.StatusCode.UNAVAILABLE


class Unauthenticated(StatusError):
    """The caller has not shown a key that is known here."""

    code = grpc.StatusCode.UNAUTHENTICATED


class Failed(StatusError):
    """A status that another process gave and that is passed on."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes over the wire for an exception."""

    code: grpc.StatusCode
    message: str
    retry_after: float | None = None
    field: str | None = None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata: the retry hint and the name of the field at fault."""
        entries: list[tuple[str, str]] = []
        if self.retry_after is not None:
            entries.append((RETRY_AFTER_KEY, str(round(self.retry_after * 1000))))
        if self.field is not None:
            entries.append((FIELD_KEY, self.field))
        return tuple(entries)


def describe(error: BaseException) -> Fault:
    """Turn an exception into what the caller may know about it."""
    if isinstance(error, InvalidField):
        return Fault(grpc.StatusCode.INVALID_ARGUMENT, str(error), field=error.field)
    if isinstance(error, Unsupported):
        return Fault(grpc.StatusCode.UNIMPLEMENTED, str(error), field=error.field)
    if isinstance(error, StatusError):
        return Fault(error.code, str(error), error.retry_after)
    incident = secrets.token_hex(8)
    logger.error("incident %s", incident, exc_info=error)
    return Fault(grpc.StatusCode.INTERNAL, f"internal error, incident {incident}")


def code_number(code: grpc.StatusCode) -> int:
    """The canonical number of a status code, as `SequenceError.code` carries it."""
    number: int = code.value[0]
    return number


def code_from_number(number: int) -> grpc.StatusCode:
    """The status code of a canonical number; an unknown one is UNKNOWN."""
    return _CODES.get(number, grpc.StatusCode.UNKNOWN)


_CODES = {code_number(code): code for code in grpc.StatusCode}
