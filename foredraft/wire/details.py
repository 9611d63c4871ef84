"""Google's rich error model: what a caller's program can act on, beside code and text."""

from __future__ import annotations

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2 as details  # type: ignore[import-untyped]
from google.rpc import status_pb2
from grpc_status import rpc_status

from foredraft.wire.errors import Fault

DOMAIN = "foredraft"

_REASONS = {
    grpc.StatusCode.INVALID_ARGUMENT: "INVALID_FIELD",
    grpc.StatusCode.UNIMPLEMENTED: "UNSUPPORTED_FIELD",
    grpc.StatusCode.UNAUTHENTICATED: "UNKNOWN_KEY",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "LIMIT_REACHED",
    grpc.StatusCode.UNAVAILABLE: "NOT_READY",
}


def detailed(fault: Fault) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata with a google.rpc.Status: ErrorInfo, the field at fault, when to retry."""
    status = status_pb2.Status(code=fault.code.value[0], message=fault.message)
    reason = _REASONS.get(fault.code, fault.code.name)
    status.details.add().Pack(details.ErrorInfo(reason=reason, domain=DOMAIN))
    if fault.field is not None:
        violation = details.BadRequest.FieldViolation(
            field=fault.field, description=fault.message, reason=reason
        )
        status.details.add().Pack(details.BadRequest(field_violations=[violation]))
    if fault.retry_after is not None:
        delay = Duration()
        delay.FromMilliseconds(round(fault.retry_after * 1000))
        status.details.add().Pack(details.RetryInfo(retry_delay=delay))
    return tuple(rpc_status.to_status(status).trailing_metadata)
