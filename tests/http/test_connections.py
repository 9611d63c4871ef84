"""Connections whose clients say nothing, say nonsense or do not read."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from support.fakes import PATIENCE_SECONDS, until
from support.http_door import door
from support.raw_http import connection, exchange, post, read_reply

from gateway.http import connection as connections
from gateway.http import door as doors

COMPLETION = "/v1/completions"
SECRET = b"canary-1234"
MALFORMED = {
    "a header with a control character": b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
    b"Authorization: Bearer " + SECRET + b"\x01\r\n\r\n",
    "a header without a colon": b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
    b"Authorization Bearer " + SECRET + b"\r\n\r\n",
    "two lengths": post(COMPLETION, SECRET, "Content-Length: 3"),
    "a bad chunk": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n" + SECRET + b"\r\n\r\n",
    "a header too long": b"GET /health HTTP/1.1\r\nA: " + 1000 * SECRET + b"\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02" + SECRET + b"\r\n\r\n",
}


@pytest.mark.asyncio
async def test_nothing_that_is_malformed_is_logged_or_sent_back(model, caplog):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("grpc").setLevel(logging.INFO)
    async with door(model) as at:
        for name, sent in MALFORMED.items():
            reply = await exchange(at.gateway.http.address, sent)
            assert (reply.status, reply.error()["code"]) == (400, "invalid_http"), name
            assert SECRET not in reply.body, name
    assert SECRET.decode() not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_body_that_nobody_reads_any_more_is_not_logged(model, caplog):
    """The refusal is out when the rest of the body turns out to be malformed."""
    caplog.set_level(logging.DEBUG)
    async with door(model) as at, connection(at.gateway.http.address) as (reader, writer):
        writer.write(
            b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
        )
        assert (await read_reply(reader)).status == 404
        writer.write(SECRET + b"\r\n\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            rest = await reader.read()
    assert SECRET not in rest
    assert SECRET.decode() not in caplog.text


@pytest.mark.asyncio
async def test_a_fault_of_the_door_itself_is_logged_without_its_text(caplog):
    fault = RuntimeError(SECRET.decode())
    try:
        raise fault
    except RuntimeError:
        connections.Connection.log_exception(None, "of a connection", exc_info=fault)
    assert "RuntimeError" in caplog.text and __name__.rpartition(".")[2] in caplog.text
    assert SECRET.decode() not in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("header", "status", "code"),
    [
        ("Content-Encoding: br", 415, "invalid_encoding"),
        ("Content-Encoding: canary", 415, "invalid_encoding"),
        ("Content-Encoding: gzip, gzip", 415, "invalid_encoding"),
        ("Expect: canary", 417, "expectation_failed"),
    ],
)
async def test_what_a_header_asks_for_in_vain(model, header, status, code):
    async with door(model) as at:
        reply = await exchange(at.gateway.http.address, post(COMPLETION, b"{}", header))
        assert (reply.status, reply.error()["code"]) == (status, code)
        assert b"canary" not in reply.body


@pytest.mark.asyncio
async def test_bodies_may_be_compressed(model, words):
    async with door(model, [words.end("b")]) as at:
        for encoding in ("gzip", "deflate"):
            body = json.dumps({"prompt": "a"}).encode()
            async with at.http.post(COMPLETION, data=body, compress=encoding) as response:
                assert response.status == 200


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [b"", b"POST /v1/comp", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_that_does_not_go_on_is_closed(model, monkeypatch, said):
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.2)
    async with door(model) as at, connection(at.gateway.http.address) as (reader, writer):
        writer.write(said)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await reader.read() == b""


@pytest.mark.asyncio
async def test_a_connection_rests_only_between_requests(model, words, monkeypatch):
    """Its request may take longer; what comes after the answer may not."""
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.2)
    async with door(model) as at, connection(at.gateway.http.address) as (reader, writer):
        writer.write(post(COMPLETION, b'{"prompt": "a"}'))
        await until(lambda: at.verify.live)
        await asyncio.sleep(3 * connections.IDLE_SECONDS)
        [seq_id] = at.verify.live
        at.verify.commit(seq_id, words.end("b"))
        assert (await read_reply(reader)).status == 200
        writer.write(b"POST /v1")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await reader.read() == b""


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reader_that_takes_nothing_is_cut_off(model, words, monkeypatch, stream):
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.2)
    echo = 20_000_000 * "a"
    monkeypatch.setattr("gateway.http.completions.CompletionAnswer._prompt", lambda *_: echo)
    async with door(model) as at:
        server = at.gateway.http._runner.server
        async with connection(at.gateway.http.address) as (_reader, writer):
            body = json.dumps({"prompt": "a", "echo": True, "stream": stream}).encode()
            writer.write(post(COMPLETION, body))
            await until(lambda: at.verify.live)
            [seq_id] = at.verify.live
            at.verify.commit(seq_id, words.say("b") if stream else words.end("b"))
            await until(lambda: not at.verify.live and not server.connections)


@pytest.mark.asyncio
async def test_a_door_that_closes_waits_for_readers_and_no_others(model, words, monkeypatch):
    """The grace time of this one is longer than any test."""
    monkeypatch.setattr(connections, "LAST_SECONDS", 0.1)
    monkeypatch.setattr(doors, "GRACE_SECONDS", 600.0)
    echo = 20_000_000 * "a"
    async with door(model) as at:
        http = at.gateway.http
        server = http._runner.server
        async with connection(http.address) as unread, connection(http.address) as (reader, writer):
            writer.write(post(COMPLETION, b'{"prompt": "a"}'))
            await until(lambda: at.verify.live)
            monkeypatch.setattr(
                "gateway.http.completions.CompletionAnswer._prompt", lambda *_: echo
            )
            body = json.dumps({"prompt": "a", "echo": True, "stream": True}).encode()
            unread[1].write(post(COMPLETION, body))
            await until(lambda: len(at.verify.live) == 2)
            first, second = (opened.seq_id for opened in at.verify.opened)
            at.verify.commit(second, words.say("b"))
            await until(lambda: any(one._stalled for one in server.connections))
            closing = http.close()
            await until(lambda: second not in at.verify.live)
            assert first in at.verify.live and not closing.done()
            at.verify.commit(first, words.end("b"))
            assert (await read_reply(reader)).status == 200
            async with asyncio.timeout(PATIENCE_SECONDS):
                await closing


@pytest.mark.asyncio
async def test_a_connection_too_many_is_refused_until_another_ends(model, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    async with door(model) as at:
        address, server = at.gateway.http.address, at.gateway.http._runner.server
        async with connection(address):
            async with connection(address):
                await until(lambda: len(server.connections) == 2)
                reply = await exchange(address, post(COMPLETION, b'{"prompt": "a"}'))
                assert (reply.status, reply.error()["code"]) == (503, "too_many_connections")
                assert int(reply.headers["retry-after"]) >= 1
                assert len(server.connections) == 2 and not at.verify.opened
            await until(lambda: len(server.connections) == 1)
            assert (await exchange(address, post("/nowhere", b""))).status == 404
