"""A gateway with an HTTP door, a scripted target behind it and OpenAI's client before it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import openai
from tokenizers import Tokenizer

from foredraft.params import FinishReason
from foredraft.tokenizer_hash import tokenizer_identity
from gateway.server import Gateway
from support.fakes import FakeDraft, FakeVerify, Round, gateway, identity, worker

MODEL = "tiny"  # what the fakes call theirs


@dataclass
class Door:
    """``http`` knows the door's address; ``client`` never tries twice."""

    gateway: Gateway
    verify: FakeVerify
    draft: FakeDraft | None
    client: openai.AsyncOpenAI
    http: aiohttp.ClientSession


@contextlib.asynccontextmanager
async def door(
    model: Path,
    rounds: Iterable[Round] = (),
    *,
    drafting: bool = False,
    max_sequences: int = 8,
    **settings: object,
) -> AsyncIterator[Door]:
    made = tokenizer_identity(model)
    known = identity(made.hash, made.vocab_size, max_sequences=max_sequences)
    verify, draft = FakeVerify(known, rounds), FakeDraft(known)
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(worker(verify, "127.0.0.1:0"))
        drafts = [await stack.enter_async_context(worker(draft, "127.0.0.1:0"))] if drafting else []
        running = await stack.enter_async_context(
            gateway(model, address, *drafts, http_listen="127.0.0.1:0", **settings)
        )
        assert running.http is not None
        base = f"http://{running.http.address}"
        client = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
        await stack.enter_async_context(client)
        http = await stack.enter_async_context(aiohttp.ClientSession(base))
        yield Door(running, verify, draft if drafting else None, client, http)


class Words:
    """Texts as the target commits them."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def say(self, text: str, **fields: object) -> Round:
        return Round(self.ids(text), **fields)

    def end(self, text: str, **fields: object) -> Round:
        """The last round of an answer that ends by itself."""
        return self.say(text, finish=FinishReason.STOP, **fields)
