"""The gateway as a process runs it: from start to SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.fakes import FakeVerify, Round, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft import AsyncClient, Unavailable
from foredraft.config import GatewayConfig
from foredraft.params import FinishReason
from foredraft.tokenizer_hash import tokenizer_identity
from foredraft.wire.channel import public_channel
from gateway.generate_service import SERVICE
from gateway.server import serve


@pytest.mark.asyncio
async def test_live_answers_finish_or_are_told_before_the_end(tmp_path):
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    made = tokenizer_identity(model)
    verify = FakeVerify(identity(made.hash, made.vocab_size))
    listen = f"unix:{tmp_path}/gateway"
    async with worker(verify, f"unix:{tmp_path}/verify") as address:
        config = GatewayConfig(grpc_listen=listen, model=model, verify=(address,))
        serving = asyncio.create_task(serve(config))
        await until(lambda: verify.budgets)
        async with AsyncClient(listen) as client, AsyncClient(listen) as late:
            await late.models()
            answer = asyncio.create_task(client.generate("hello"))
            await until(lambda: verify.live)
            endless = asyncio.create_task(client.generate("hello"))
            await until(lambda: len(verify.live) == 2)
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(Unavailable):
                while True:
                    await late.models()
            verify.commit(verify.opened[0].seq_id, Round((10,), finish=FinishReason.STOP))
            assert (await answer).token_ids == [10]
            with pytest.raises(Unavailable, match="shutting down") as told:
                await endless
            assert told.value.retry_after
        async with asyncio.timeout(20):
            await serving
        await until(lambda: not verify.outboxes)


@pytest.mark.asyncio
async def test_tools_without_protos_find_the_services(tmp_path):
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    made = tokenizer_identity(model)
    verify = FakeVerify(identity(made.hash, made.vocab_size))
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    async with (
        worker(verify, "127.0.0.1:0") as address,
        gateway(model, address) as running,
        public_channel(running.address) as opened,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(opened)
        listed, described = [answer async for answer in stub.ServerReflectionInfo(iter(asked))]
    names = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto
