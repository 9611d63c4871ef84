"""The three services as their processes run them, with a normal request and what they hold."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import grpc

from draft_service import server as draft_server
from foredraft import AsyncClient
from foredraft.config import DraftConfig, EngineConfig, VerifyConfig
from foredraft.params import FinishReason, SamplingParams, Speculation
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.channel import private_channel, public_channel
from foredraft.wire.codec.nodes import decode_nodes
from foredraft.wire.messages import NodeBlocks, OpenSequence, OpenSequences, StepResult
from foredraft.wire.peers import DraftPeer, VerifyPeer
from foredraft.wire.pulse import Pulse
from support.fakes import FakeVerify, Round, gateway, identity, until, worker
from verify_service import server as verify_server

VOCAB, CONTEXT, MAX_NODES, MAX_SEQUENCES = 128, 256, 8, 8
PROMPT = (5, 6, 7, 8) * 4
ROUNDS = (Round((10, 11)), Round((12,), finish=FinishReason.STOP))


@dataclass(frozen=True)
class Door:
    """``normal`` makes a request of its own and gives what came of it; ``held`` counts state."""

    address: str
    channel: grpc.aio.Channel
    normal: Callable[[], Awaitable[object]]
    held: Callable[[], Mapping[str, int]]


def opening(seq_id: int, prompt: tuple[int, ...] = PROMPT, **params: object) -> OpenSequence:
    options = {"max_tokens": 6, "ignore_eos": True} | params
    return OpenSequence(
        seq_id,
        incarnation=1,
        prompt=prompt,
        params=SamplingParams(**options),
        speculation=Speculation.SUFFIX,
    )


async def verified(peer: VerifyPeer) -> list[int]:
    """The tokens of one sequence on a stream of its own."""
    stream = peer.open()
    tokens: list[int] = []
    try:
        await stream.write(OpenSequences((opening(1),)))
        while isinstance(message := await stream.read(), StepResult):
            (commit,) = message.commits
            tokens += commit.tokens
            if commit.finish is not None:
                return tokens
        raise AssertionError(f"a normal sequence got {message}")
    finally:
        stream.cancel()


async def drafted(peer: DraftPeer) -> list[tuple[int, ...]]:
    """The guesses for one sequence on a stream of its own, until they are complete."""
    stream = peer.open()
    guesses: list[tuple[int, ...]] = []
    try:
        await stream.write(OpenSequences((opening(1),)))
        while isinstance(message := await stream.read(), NodeBlocks):
            for block in message.blocks:
                batch, errors = decode_nodes(block.nodes)
                assert not errors
                guesses += [group.tokens for group in batch.groups]
                if any(group.complete for group in batch.groups):
                    return guesses
        raise AssertionError(f"a normal sequence got {message}")
    finally:
        stream.cancel()


@asynccontextmanager
async def verify_door(directory: Path, model: Path) -> AsyncIterator[Door]:
    address = f"unix:{directory}/verify.sock"
    engine = EngineConfig(model, "float32", kv_memory_mib=4)
    config = VerifyConfig(address, engine, MAX_SEQUENCES, MAX_NODES)
    made: list[verify_server.Worker] = []

    class Remembered(verify_server.Worker):
        def __init__(self, config: VerifyConfig) -> None:
            super().__init__(config)
            made.append(self)

    def held() -> Mapping[str, int]:
        steps = made[0]._steps
        assert steps is not None
        return {
            "streams": len(made[0]._outboxes),
            "messages": steps.inbox.qsize(),
            "sequences": len(steps._scheduler),
            "free blocks": steps._scheduler.reservations.free_blocks,
        }

    with patch.object(verify_server, "Worker", Remembered):
        task = asyncio.create_task(verify_server.serve(config))
        async with until_told(task), private_channel(address) as channel:
            await until(lambda: task.done() or (made and made[0]._steps is not None))
            peer = VerifyPeer(channel)
            yield Door(address, channel, lambda: verified(peer), held)


@asynccontextmanager
async def draft_door(directory: Path, model: Path) -> AsyncIterator[Door]:
    address = f"unix:{directory}/draft.sock"
    config = DraftConfig(address, model, max_sequences=MAX_SEQUENCES, max_nodes=MAX_NODES)
    made: list[draft_server.DraftServicer] = []
    engines: list[draft_server.Engine] = []

    class Remembered(draft_server.DraftServicer):
        def begin(self, engine: draft_server.Engine, lane: Path | None = None) -> Pulse:
            made.append(self)
            engines.append(engine)
            return super().begin(engine, lane)

    def held() -> Mapping[str, int]:
        drafter = engines[0].drafter
        return {
            "streams": len(made[0]._outboxes),
            "sequences": len(drafter),
            "names": len(drafter._by_name),
            "budgets": len(drafter._budgets),
            "outcomes": len(drafter._outcomes),
            "work": int(drafter.busy),
        }

    with patch.object(draft_server, "DraftServicer", Remembered):
        task = asyncio.create_task(draft_server.serve(config))
        async with until_told(task), private_channel(address) as channel:
            await until(lambda: task.done() or made)
            peer = DraftPeer(channel)
            yield Door(address, channel, lambda: drafted(peer), held)


@asynccontextmanager
async def generate_door(directory: Path, model: Path) -> AsyncIterator[Door]:
    """The gateway; its target is a script that answers every sequence alike."""
    made = tokenizer_identity(model)
    target = FakeVerify(identity(made.hash, made.vocab_size, max_sequences=MAX_SEQUENCES), ROUNDS)
    async with (
        worker(target, f"unix:{directory}/verify.sock") as address,
        gateway(model, address) as running,
        AsyncClient(running.address) as client,
        public_channel(running.address) as channel,
    ):

        async def normal() -> list[int]:
            return (await client.generate(list(PROMPT))).token_ids

        def held() -> Mapping[str, int]:
            return {"requests": len(running.relay._live), "at the target": len(target.live)}

        yield Door(running.address, channel, normal, held)


@asynccontextmanager
async def until_told(task: asyncio.Task[None]) -> AsyncIterator[None]:
    """Ends a server as its process is ended."""
    try:
        yield
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await task
