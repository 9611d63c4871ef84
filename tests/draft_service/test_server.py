"""The draft service over real gRPC on a unix socket."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import load_file, save_file
from support.reduced import write_vocabulary
from support.scripted_target import ScriptedTarget
from support.tiny_models import make_tiny_llama

from draft_service import server as draft_server
from foredraft.config import DraftConfig, EngineConfig
from foredraft.params import SamplingParams, Speculation
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.v1 import draft_pb2, draft_pb2_grpc
from foredraft.wire.channel import private_channel
from foredraft.wire.codec.draft import decode_handshake, decode_response, encode_request
from foredraft.wire.codec.nodes import decode_nodes
from foredraft.wire.errors import code_number
from foredraft.wire.messages import (
    CloseDrafts,
    CloseSequence,
    Commit,
    Commits,
    Nack,
    NodeBlocks,
    NodeGroup,
    OpenSequence,
    OpenSequences,
    Source,
)

SECONDS = 20.0
PROMPT = [5, 6, 7, 8] * 6


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return {
        "target": make_tiny_llama(base / "target", vocab=160, real_vocab=120, context=512),
        "draft": make_tiny_llama(base / "draft", vocab=128, real_vocab=120),
        "other": make_tiny_llama(base / "other", vocab=128, real_vocab=110),
        "broken": without_norm(make_tiny_llama(base / "broken", vocab=128, real_vocab=120)),
        "odd": write_vocabulary(make_tiny_llama(base / "odd", vocab=128, real_vocab=120), [5, 4]),
        "mute": without_tokenizer(make_tiny_llama(base / "mute", vocab=128, real_vocab=120)),
    }


def without_norm(directory: Path) -> Path:
    weights = load_file(directory / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, directory / "model.safetensors")
    return directory


def without_tokenizer(directory: Path) -> Path:
    (directory / "tokenizer.json").unlink()
    return directory


async def wait_for_health(channel: grpc.aio.Channel) -> None:
    """Until the service says that it is serving."""
    health = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=draft_server.SERVICE)
    async with asyncio.timeout(SECONDS):
        while True:
            reply = await health.Check(request, wait_for_ready=True)
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    tmp_path, monkeypatch, config: DraftConfig
) -> AsyncIterator[tuple[grpc.aio.Channel, draft_server.Engine, asyncio.Task[None]]]:
    """The service as its process runs it; stopped by SIGTERM at the end if the test has not."""
    engines = []

    def load(config):
        engines.append(real_load(config))
        return engines[0]

    real_load = draft_server.load
    monkeypatch.setattr(draft_server, "load", load)
    task = asyncio.create_task(draft_server.serve(config))
    try:
        async with private_channel(config.listen) as channel:
            await wait_for_health(channel)
            yield channel, engines[0], task
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, SECONDS)


def make_config(tmp_path, models, draft: str | None, **fields) -> DraftConfig:
    engine = None if draft is None else EngineConfig(models[draft], "float32", kv_memory_mib=4)
    return DraftConfig(f"unix:{tmp_path}/draft.sock", models["target"], engine, **fields)


def open_one(seq_id: int, prompt=PROMPT, **fields) -> OpenSequence:
    params = fields.pop("params", SamplingParams(max_tokens=64, ignore_eos=True))
    return OpenSequence(seq_id, 0, tuple(prompt), params, **fields)


class Gateway:
    """The other end of Propose."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = draft_pb2_grpc.DraftServiceStub(channel).Propose()

    async def send(self, request) -> None:
        await self.call.write(encode_request(request))

    async def read(self) -> NodeBlocks | Nack:
        wire = await asyncio.wait_for(self.call.read(), SECONDS)
        assert wire is not grpc.aio.EOF
        return decode_response(wire)

    async def read_until_complete(self, seq_id: int) -> list[NodeGroup]:
        groups: list[NodeGroup] = []
        while True:
            message = await self.read()
            assert isinstance(message, NodeBlocks)
            for block in message.blocks:
                batch, errors = decode_nodes(block.nodes)
                assert not errors
                groups += [group for group in batch.groups if group.seq_id == seq_id]
            if any(group.complete for group in groups):
                return groups


async def wait_until_empty(engine: draft_server.Engine, free_blocks: int | None = None) -> None:
    async with asyncio.timeout(SECONDS):
        while len(engine.drafter) or engine.drafter.busy:
            await asyncio.sleep(0.01)
    if free_blocks is not None:
        assert engine.drafter._model._engine.pool.free_blocks == free_blocks


@pytest.mark.asyncio
async def test_one_sequence_from_open_to_close(tmp_path, monkeypatch, models) -> None:
    config = make_config(tmp_path, models, "draft")
    async with serving(tmp_path, monkeypatch, config) as (channel, engine, _):
        total = engine.identity.limits.total_blocks
        gateway = Gateway(channel)
        opened = open_one(1)
        target = ScriptedTarget(opened, [*PROMPT, *PROMPT[:10], 40, 41])  # the last need the model
        await gateway.send(OpenSequences((opened,)))
        while not target.done:
            for group in await gateway.read_until_complete(1):
                target.take(group)
            assert target.complete
            await gateway.send(Commits((target.step(),)))
        assert {source for *_, source in target.proposed} >= {Source.SUFFIX}
        await gateway.read_until_complete(1)
        assert engine.drafter._model._engine.pool.free_blocks < total
        await gateway.send(CloseDrafts((CloseSequence(1, 0),)))
        await wait_until_empty(engine, total)
        await gateway.call.done_writing()
        assert await gateway.call.read() is grpc.aio.EOF


@pytest.mark.asyncio
async def test_faults_of_one_sequence_leave_the_stream_alive(tmp_path, monkeypatch, models) -> None:
    config = make_config(tmp_path, models, None, max_sequences=2)
    async with serving(tmp_path, monkeypatch, config) as (channel, _, _):
        gateway = Gateway(channel)
        bad = (
            open_one(1, [500]),
            open_one(2, params=SamplingParams(temperature=-1.0)),
            open_one(3),
            open_one(4),
            open_one(5),
        )
        await gateway.send(OpenSequences(bad))
        errors = {}
        while len(errors) < 3:
            message = await gateway.read()
            assert isinstance(message, Nack)
            errors |= {error.seq_id: error for error in message.errors}
        invalid = code_number(grpc.StatusCode.INVALID_ARGUMENT)
        assert errors[1].code == errors[2].code == invalid
        assert "temperature" in errors[2].message
        assert errors[5].code == code_number(grpc.StatusCode.RESOURCE_EXHAUSTED)
        (group,) = await gateway.read_until_complete(3)
        assert group.tokens
        await gateway.send(Commits((Commit(3, 0, len(PROMPT) + 4, (5,)),)))
        message = await gateway.read()
        assert message.errors[0].code == code_number(grpc.StatusCode.FAILED_PRECONDITION)
        await gateway.send(OpenSequences((open_one(3, committed=(5, 6, 7, 8, 5)),)))
        (group,) = await gateway.read_until_complete(3)
        assert group.tokens
        gateway.call.cancel()


@pytest.mark.asyncio
async def test_a_dropped_stream_gives_everything_back(tmp_path, monkeypatch, models) -> None:
    config = make_config(tmp_path, models, "draft")
    async with serving(tmp_path, monkeypatch, config) as (channel, engine, _):
        total = engine.identity.limits.total_blocks
        for end in ("cancel", "half-close"):
            gateway = Gateway(channel)
            await gateway.send(OpenSequences(tuple(open_one(i) for i in range(8))))
            await gateway.read_until_complete(7)
            assert len(engine.drafter) == 8
            if end == "cancel":
                gateway.call.cancel()
            else:
                await gateway.call.done_writing()
            await wait_until_empty(engine, total)


@pytest.mark.asyncio
async def test_a_message_that_cannot_be_read_ends_its_stream_only(
    tmp_path, monkeypatch, models
) -> None:
    config = make_config(tmp_path, models, None)
    async with serving(tmp_path, monkeypatch, config) as (channel, _, _):
        good, bad = Gateway(channel), Gateway(channel)
        await good.send(OpenSequences((open_one(1),)))
        await bad.call.write(draft_pb2.ProposeRequest(commits=draft_pb2.Commits(seq_ids=[1])))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bad.call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "incarnations" in caught.value.details()
        await good.read_until_complete(1)
        good.call.cancel()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("draft", "name", "drafts"),
    [
        (None, "target", 0),
        ("other", "target", 0),
        ("broken", "target", 0),
        ("odd", "target", 0),
        ("mute", "target", 0),
        ("draft", "draft", 1),
    ],
)
async def test_handshake_speaks_the_vocabulary_of_the_target(
    tmp_path, monkeypatch, models, caplog, draft, name, drafts
) -> None:
    """A draft model that does not fit or run is told; suffix drafts are served all the same."""
    kept = 1000 if draft is None else 0
    config = make_config(tmp_path, models, draft, max_nodes=9, max_depth=7, suffix_store=kept)
    async with serving(tmp_path, monkeypatch, config) as (channel, _, _):
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        reply = await stub.Handshake(draft_pb2.DraftServiceHandshakeRequest(protocol_version=1))
        worker = decode_handshake(reply)
        assert worker.model.model_id == name
        assert worker.model.tokenizer_hash == tokenizer_identity(models["target"]).hash
        assert worker.model.vocab_size == 120
        assert (worker.limits.max_nodes, worker.limits.max_depth) == (9, 7)
        assert (worker.limits.total_blocks > 0) == bool(drafts)
        assert worker.keeps_texts == (draft is None)
        warnings = [record for record in caplog.records if "only suffix" in record.getMessage()]
        assert len(warnings) == (draft in ("other", "broken", "odd", "mute"))
        assert "Traceback" not in caplog.text
        for thread in threading.enumerate():
            if thread.name.startswith("draft-load"):
                thread.join(SECONDS)
                assert not thread.is_alive()
        gateway = Gateway(channel)
        await gateway.send(OpenSequences((open_one(1, speculation=Speculation.SUFFIX),)))
        assert (await gateway.read_until_complete(1))[0].tokens
        gateway.call.cancel()


@pytest.mark.asyncio
async def test_not_serving_until_loaded(tmp_path, monkeypatch, models) -> None:
    gate = asyncio.Event()
    events = asyncio.get_running_loop()
    real_load = draft_server.load

    def slow_load(config):
        asyncio.run_coroutine_threadsafe(gate.wait(), events).result()
        return real_load(config)

    monkeypatch.setattr(draft_server, "load", slow_load)
    config = make_config(tmp_path, models, None)
    task = asyncio.create_task(draft_server.serve(config))
    async with private_channel(config.listen) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", draft_server.SERVICE):
            request = health_pb2.HealthCheckRequest(service=name)
            reply = await health.Check(request, wait_for_ready=True)
            assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Handshake(draft_pb2.DraftServiceHandshakeRequest(protocol_version=1))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        gate.set()
        await wait_for_health(channel)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, SECONDS)


@pytest.mark.asyncio
async def test_shutdown_with_open_streams(tmp_path, monkeypatch, models) -> None:
    config = make_config(tmp_path, models, "draft")
    async with serving(tmp_path, monkeypatch, config) as (channel, engine, task):
        gateway = Gateway(channel)
        await gateway.send(OpenSequences((open_one(1),)))
        await gateway.read_until_complete(1)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while True:
                await gateway.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), SECONDS)
        assert task.done() and len(engine.drafter) == 0
