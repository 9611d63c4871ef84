"""Bytes that are no message of their type: a fault of the sender, told like any other.

Left alone, grpc answers a call that begins with such bytes with UNKNOWN and the name of a Python
class, and raises in the middle of a stream what its handler cannot tell from a fault of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from foredraft.wire.errors import BadMessage


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands where the message should be until a handler asks for it."""

    error: BadMessage


def tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """``deserialize``, which instead of raising returns an `Unreadable`."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return Unreadable(BadMessage("message", "bytes of its type in protos/"))

    return read


def readable(request: Any) -> Any:
    """The request, or an iterator of requests, as a handler may see it.

    Raises:
        BadMessage: it is `Unreadable`; an iterator raises it when it gets there.
    """
    if isinstance(request, AsyncIterator):
        return _Readable(request)
    if isinstance(request, Unreadable):
        raise request.error
    return request


class _Readable(AsyncIterator[Any]):
    """A class, not a generator: one call less for each message of a step."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._next = requests.__anext__

    async def __anext__(self) -> Any:
        return readable(await self._next())
