"""Broken requests at the HTTP door: an error body or nothing, and nothing of them in the log."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fakes import PATIENCE_SECONDS, Round
from support.http_door import MODEL, door
from support.raw_http import connection, post, read_reply
from support.tiny_models import make_tiny_tokenizer

from foredraft.params import FinishReason
from gateway.http import body
from gateway.http import connection as connections

REQUESTS, AT_ONCE = 600, 50
CANARY = b"canary-1234"
KEY = b"Authorization: Bearer " + CANARY
WHOLE = [
    post("/v1/completions", b'{"prompt":"%s","max_tokens":3}' % CANARY, KEY.decode()),
    post("/v1/chat/completions", b'{"messages":[{"role":"user","content":"%s"}]}' % CANARY),
    b"GET /v1/models/" + CANARY + b" HTTP/1.1\r\nHost: x\r\n" + KEY + b"\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + KEY + b"\r\n\r\n"
    b'19\r\n{"prompt": "' + CANARY + b'"}\r\n0\r\n\r\n',
]
PIECES = [b"\r\n", b"\n", b"\0", b"\xff", b": ", b" ", b"\t", b"{", b'"', b"HTTP/9.9", b"//[", KEY]


def broken(count: int, seed: int) -> Iterator[bytes]:
    """Whole requests with some places cut out, doubled, overwritten or filled in."""
    dice = random.Random(seed)
    for _ in range(count):
        sent = dice.choice(WHOLE)
        for _ in range(dice.randint(1, 3)):
            start = dice.randrange(len(sent))
            end = min(len(sent), start + dice.choice((0, 0, 1, 4, 40)))
            filling = dice.choice(
                (b"", sent[start:end] * 2, dice.choice(PIECES), dice.randbytes(3))
            )
            sent = sent[:start] + filling + sent[end:]
        yield sent


async def outcome(address: str, sent: bytes) -> str:
    """What came of a request: the code of its refusal, a status, or nothing."""
    async with connection(address) as (reader, writer):
        writer.write(sent)
        try:
            reply = await read_reply(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            return "closed"
    if reply.status == 200:
        return "200"
    code = str(reply.error()["code"])
    assert code != "invalid_http" or CANARY not in reply.body
    return code


@pytest.mark.asyncio
async def test_the_http_door(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(body, "BODY_SECONDS", 0.3)
    caplog.set_level(logging.DEBUG)
    for noisy in ("grpc", "httpx", "openai"):  # clients', in this process
        logging.getLogger(noisy).setLevel(logging.WARNING)
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    seen: Counter[str] = Counter()
    async with door(model, [Round((10,), finish=FinishReason.STOP)]) as at:
        waiting = list(broken(REQUESTS, seed=1))
        async with asyncio.timeout(4 * PATIENCE_SECONDS):
            while waiting:
                now, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
                sending = [outcome(at.gateway.http.address, sent) for sent in now]
                seen.update(await asyncio.gather(*sending))
                assert (await at.client.completions.create(model=MODEL, prompt="a")).choices
        assert not at.verify.live
    assert seen["invalid_http"] > REQUESTS / 4 and len(seen) > 6, seen
    assert "internal_error" not in seen
    assert CANARY.decode() not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
