"""Clients in a process of their own that read streamed answers and do no more than count them."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from ctypes import c_uint64
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.load import clients
from foredraft.call import build_request
from foredraft.cli.faults import CommandError
from foredraft.telemetry.context import TRACEPARENT
from foredraft.wire.channel import public_channel
from foredraft.wire.codec import generate as codec

GRPC, HTTP = "grpc", "http"
DOORS = (GRPC, HTTP)

_PROMPT = "An answer that no model gives."
_SPAWN = multiprocessing.get_context("spawn")
_EVENT = b"data: "
_METHOD = "/foredraft.v1.GenerateService/GenerateStream"

Count = Callable[[int], None]
Read = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Load:
    """``count`` clients at a door of the gateway at ``address``, with answers of ``tokens``.

    sampled_every: where the gateway traces, only one of so many requests is to be traced.
    """

    door: str
    address: str
    count: int
    tokens: int
    sampled_every: int = 1

    def answer_tokens(self, number: int) -> int:
        """Of different lengths: answers that end together would all begin together again."""
        return self.tokens - self.tokens // 2 * (number % self.count) // self.count

    def metadata(self, number: int) -> tuple[tuple[str, str], ...]:
        """A trace context that says whether the request is to be traced."""
        flags = "00" if number % self.sampled_every else "01"
        return ((TRACEPARENT, f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{flags}"),)


class Readers:
    """Made by `reading`; ``deltas`` counts the pieces of answers that came."""

    def __init__(self, load: Load) -> None:
        self._deltas: Any = _SPAWN.RawValue(c_uint64)
        self.process = _SPAWN.Process(target=_work, args=(load, self._deltas), daemon=True)

    @property
    def deltas(self) -> int:
        return int(self._deltas.value)

    def check(self) -> None:
        """Raises CommandError if the clients could not go on."""
        if not self.process.is_alive():
            raise CommandError(f"the clients ended with exit code {self.process.exitcode}")


@contextlib.asynccontextmanager
async def reading(load: Load, settle_seconds: float) -> AsyncIterator[Readers]:
    """The clients read inside the block, and have done so for ``settle_seconds``.

    Raises:
        CommandError: a request failed.
    """
    readers = Readers(load)
    readers.process.start()
    try:
        while not readers.deltas:
            readers.check()
            await asyncio.sleep(0.05)
        await asyncio.sleep(settle_seconds)
        yield readers
        readers.check()
    finally:
        readers.process.kill()
        await asyncio.to_thread(readers.process.join)


def _work(load: Load, deltas: Any) -> None:
    def count(more: int) -> None:
        deltas.value += more

    asyncio.run(_read_on(load, count))


async def _read_on(load: Load, count: Count) -> None:
    door = _grpc_door if load.door == GRPC else _http_door
    async with door(load, count) as read, clients(load.count, read, 0.0):
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _grpc_door(load: Load, count: Count) -> AsyncIterator[Read]:
    """Messages are left as the bytes they are."""
    async with public_channel(load.address) as channel:
        call = channel.unary_stream(_METHOD, None, None)

        async def read(number: int) -> None:
            options = {"max_tokens": load.answer_tokens(number), "speculation": "off"}
            request = build_request(_PROMPT, None, "", options)
            wire = codec.encode_stream_request(request).SerializeToString()
            async for _ in call(wire, metadata=load.metadata(number)):
                count(1)

        yield read


@contextlib.asynccontextmanager
async def _http_door(load: Load, count: Count) -> AsyncIterator[Read]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def read(number: int) -> None:
            body = {
                "prompt": _PROMPT,
                "max_tokens": load.answer_tokens(number),
                "temperature": 0,
                "speculation": "off",
                "stream": True,
            }
            url = f"http://{load.address}/v1/completions"
            headers = dict(load.metadata(number))
            async with session.post(url, json=body, headers=headers) as response:
                response.raise_for_status()
                async for data in response.content.iter_any():
                    count(data.count(_EVENT))

        yield read
