"""Bytes that a broken or hostile peer may send, and what a server makes of them."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

_MOST_NEW = 24


def malformed(messages: Sequence[Message], count: int, seed: int) -> Iterator[bytes]:
    """``count`` damaged copies of ``messages``, and bytes that never were one."""
    source = random.Random(seed)
    whole = [message.SerializeToString() for message in messages]
    for index in range(count):
        data = bytearray(source.choice(whole))
        cut = source.randrange(len(data))
        match index % 8:
            case 0:
                data = bytearray(source.randbytes(source.randint(1, _MOST_NEW)))
            case 1:
                del data[cut:]
            case 2:
                for _ in range(source.randint(1, 8)):
                    data[source.randrange(len(data))] = source.randrange(256)
            case 3:
                del data[cut : cut + source.randint(1, _MOST_NEW)]
            case 4:
                data[cut:cut] = source.randbytes(source.randint(1, _MOST_NEW))
            case 5:
                other = source.choice(whole)
                data[cut:] = other[source.randrange(len(other)) :]
            case 6:
                data[cut:cut] = b"\xff" * source.randint(5, 12)  # a number without an end
            case 7:
                data += b"\x0b" * source.randint(1, 200)  # groups inside groups inside groups
        yield bytes(data)


class Answers(Counter[str]):
    """How many payloads got which status; ``texts`` are those of the refusals."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: set[str] = set()

    def add(self, code: grpc.StatusCode, text: str) -> None:
        self[code.name] += 1
        if code is not grpc.StatusCode.OK:
            self.texts.add(text)


async def send_to_stream(
    channel: grpc.aio.Channel, path: str, payloads: Iterable[bytes]
) -> Answers:
    """Each payload as the only message of a stream; how the server ended those streams."""
    start = channel.stream_stream(path)
    return await _count(start(iter([payload])) for payload in payloads)


async def send_to_call(channel: grpc.aio.Channel, path: str, payloads: Iterable[bytes]) -> Answers:
    """Each payload as the request of a call; how the server ended those calls."""
    start = channel.unary_stream(path)
    return await _count(start(payload) for payload in payloads)


async def _count(calls: Iterable[Any]) -> Answers:
    """The calls one after another, each read to its end: before that it has no status."""
    answers = Answers()
    for call in calls:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
        answers.add(await call.code(), await call.details())
    return answers
