"""Keys and rates at the HTTP door: the same as at the other one, in OpenAI's words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from support.fakes import FakeVerify, Round, gateway, identity, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft.config import RateLimit
from foredraft.params import FinishReason
from foredraft.tokenizer_hash import tokenizer_identity

KEY = "canary-key-1234"
ANSWERS = ("/v1/completions", "/v1/chat/completions")


@pytest.mark.asyncio
async def test_the_http_door_wants_a_key(tmp_path: Path) -> None:
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    made = tokenizer_identity(model)
    verify = FakeVerify(
        identity(made.hash, made.vocab_size), [Round((10,), finish=FinishReason.STOP)]
    )
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    body = {"model": "tiny", "prompt": "hello"}
    async with (
        worker(verify, "127.0.0.1:0") as address,
        gateway(
            model, address, http_listen="127.0.0.1:0", api_keys=keys, rate=RateLimit(1, 60.0)
        ) as running,
        aiohttp.ClientSession() as session,
    ):
        assert running.http is not None
        door = f"http://{running.http.address}"
        for headers in ({}, {"Authorization": "Bearer canary-wrong"}):
            for path in (*ANSWERS, "/tokenize", "/detokenize"):
                async with session.post(door + path, json=body, headers=headers) as refused:
                    error = (await refused.json())["error"]
                    assert (refused.status, error["code"]) == (401, "invalid_api_key")
                    assert "canary" not in error["message"]
                    assert refused.headers["WWW-Authenticate"] == "Bearer"
                    assert refused.headers["x-request-id"]
            async with session.get(door + "/v1/models", headers=headers) as refused:
                assert refused.status == 401
        assert not verify.opened
        for path in ("/health", "/metrics"):
            async with session.get(door + path) as open_to_all:
                assert open_to_all.status == 200

        right = {"Authorization": f"Bearer {KEY}"}
        async with session.get(door + ANSWERS[0], headers=right) as no_turn_of_its_rate:
            assert no_turn_of_its_rate.status == 405
        async with session.post(door + ANSWERS[0], json=body, headers=right) as answer:
            assert answer.status == 200
        asking = [
            asyncio.create_task(session.post(door + ANSWERS[0], json=body, headers=right))
            for _ in range(2)
        ]
        # One waits for its turn; for the other there is no place to wait.
        (ended,), (waiting,) = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        async with ended.result() as turned_away:
            assert turned_away.status == 429 and turned_away.headers["Retry-After"] == "60"
        waiting.cancel()
        async with session.get(door + "/v1/models", headers=right) as unrated:
            assert unrated.status == 200
    assert len(verify.opened) == 1
