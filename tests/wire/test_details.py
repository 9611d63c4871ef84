"""What a caller's program finds in the rich details of an error."""

from __future__ import annotations

import pytest
from google.rpc import error_details_pb2 as details
from google.rpc import status_pb2

from foredraft.params import InvalidField, Unsupported
from foredraft.wire.details import DOMAIN, detailed
from foredraft.wire.errors import Overloaded, Unauthenticated, Unavailable, describe


def unpacked(error: Exception) -> tuple[status_pb2.Status, dict[str, object]]:
    ((key, value),) = detailed(describe(error))
    assert key == "grpc-status-details-bin"
    status = status_pb2.Status.FromString(value)
    found: dict[str, object] = {}
    for packed in status.details:
        for kind in (details.ErrorInfo, details.BadRequest, details.RetryInfo):
            message = kind()
            if packed.Unpack(message):
                found[kind.__name__] = message
    return status, found


@pytest.mark.parametrize(
    ("error", "code", "reason", "field", "retry_ms"),
    [
        (InvalidField("top_p", "above 0 to 1"), 3, "INVALID_FIELD", "top_p", None),
        (Unsupported("grammar"), 12, "UNSUPPORTED_FIELD", "grammar", None),
        (Overloaded("the limit of 4", 1.5), 8, "LIMIT_REACHED", None, 1500),
        (Unavailable("not ready", 1.0), 14, "NOT_READY", None, 1000),
        (Unauthenticated("no key"), 16, "UNKNOWN_KEY", None, None),
        (ValueError("a secret"), 13, "INTERNAL", None, None),
    ],
)
def test_details(
    error: Exception, code: int, reason: str, field: str | None, retry_ms: int | None
) -> None:
    status, found = unpacked(error)
    info = found.pop("ErrorInfo")
    assert isinstance(info, details.ErrorInfo)
    assert (status.code, info.reason, info.domain) == (code, reason, DOMAIN)
    assert "secret" not in status.message
    bad, retry = found.pop("BadRequest", None), found.pop("RetryInfo", None)
    assert (bad.field_violations[0].field if bad else None) == field
    assert (retry.retry_delay.ToMilliseconds() if retry else None) == retry_ms
    assert not found
