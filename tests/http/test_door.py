"""From SIGTERM to the end of the process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import aiohttp
import openai
import pytest
from support.fakes import FakeVerify, identity, until, worker

from foredraft.config import GatewayConfig
from foredraft.tokenizer_hash import tokenizer_identity
from gateway.http import door
from gateway.server import serve


@pytest.mark.asyncio
@pytest.mark.parametrize("finishes", [True, False])
async def test_open_requests_have_the_grace_time(
    model, words, tmp_path, caplog, monkeypatch, finishes
):
    monkeypatch.setattr(door, "GRACE_SECONDS", 60.0 if finishes else 0.2)
    caplog.set_level(logging.INFO)
    made = tokenizer_identity(model)
    verify = FakeVerify(identity(made.hash, made.vocab_size))
    async with worker(verify, f"unix:{tmp_path}/verify") as address:
        config = GatewayConfig(
            f"unix:{tmp_path}/gateway", model, (address,), http_listen="127.0.0.1:0"
        )
        serving = asyncio.create_task(serve(config))
        await until(lambda: verify.budgets)
        [host] = [r.args[0] for r in caplog.records if r.msg.endswith("for HTTP")]
        base = f"http://{host}"
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="x", max_retries=0) as client:
            asking = asyncio.create_task(client.completions.create(model="tiny", prompt="a"))
            await until(lambda: verify.live)
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(aiohttp.ClientConnectorError):
                while True:
                    async with aiohttp.request("GET", f"{base}/health"):
                        pass
            if finishes:
                verify.commit(verify.opened[0].seq_id, words.end("b"))
                assert (await asking).choices[0].text == "b"
            else:
                with pytest.raises(openai.APIConnectionError):
                    await asking
        async with asyncio.timeout(20):
            await serving
        await until(lambda: not verify.outboxes)
        assert not verify.live
