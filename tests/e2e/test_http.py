"""The real stack behind the HTTP door: what it says is what the gRPC door says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from support.tiny_models import make_tiny_llama

from foredraft import AsyncClient
from foredraft.config import StackConfig
from foredraft.supervisor.stack import running_stack

PROMPT = [5, 9, 30, 31, 5, 9, 30]
SAMPLING: dict[str, Any] = {"max_tokens": 30, "seed": 11}
LESS_KNOWN: dict[str, Any] = {"ignore_eos": True, "top_k": 20}


@pytest.mark.asyncio
async def test_both_doors_say_the_same(tmp_path: Path) -> None:
    target = make_tiny_llama(tmp_path / "target", vocab=300)
    config = StackConfig("127.0.0.1", 0, target, http_port=0, log_level="warning")
    async with running_stack(config) as stack:
        await stack.ready()
        assert stack.doors() == {"grpc": stack.address, "http": stack.http_address}
        base = f"http://{stack.http_address}/v1"
        async with (
            AsyncClient(stack.local_address) as grpc,
            openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as http,
        ):
            expected = await grpc.generate(
                PROMPT, temperature=1.0, logprobs=2, **SAMPLING, **LESS_KNOWN
            )
            ask: dict[str, Any] = {
                "model": expected.model,
                "prompt": PROMPT,
                "logprobs": 2,
                "extra_body": LESS_KNOWN,
                **SAMPLING,
            }
            whole = await http.completions.create(n=3, **ask)
            first, *others = whole.choices
            assert first.text == expected.text
            assert first.logprobs is not None and expected.logprobs is not None
            assert first.logprobs.token_logprobs == [e.logprob for e in expected.logprobs]
            assert len({choice.text for choice in whole.choices}) == 3
            assert whole.usage is not None and whole.usage.completion_tokens == 90

            alone = await http.completions.create(
                n=3, **ask | {"extra_body": {**LESS_KNOWN, "speculation": "off"}}
            )
            assert [choice.text for choice in alone.choices] == [
                first.text,
                *(choice.text for choice in others),
            ]
            events = await http.completions.create(n=3, stream=True, **ask)
            texts = ["", "", ""]
            async for event in events:
                for choice in event.choices:
                    texts[choice.index] += choice.text
            assert texts == [choice.text for choice in whole.choices]
