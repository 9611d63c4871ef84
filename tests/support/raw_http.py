"""HTTP as bytes: what a client that follows no rules may send, and what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from support.fakes import PATIENCE_SECONDS

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, Any]:
        """What is in OpenAI's error body."""
        assert self.headers["content-type"].startswith("application/json"), self.body
        [(name, error)] = json.loads(self.body).items()
        assert name == "error" and error.keys() == {"message", "type", "param", "code"}
        return error


@asynccontextmanager
async def connection(address: str) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
    try:
        yield reader, writer
    finally:
        writer.close()


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    async with asyncio.timeout(PATIENCE_SECONDS):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
    return Reply(int(first.split(" ")[1]), headers, body)


async def exchange(address: str, sent: bytes) -> Reply:
    """The first reply to ``sent`` on a connection of its own."""
    async with connection(address) as (reader, writer):
        writer.write(sent)
        return await read_reply(reader)


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body
