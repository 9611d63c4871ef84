"""While the target is in a long pass, everything but the next token is answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.tiny_directory import make_tiny_directory
from foredraft.aio import AsyncClient
from foredraft.config import FakeEngine, StackConfig
from foredraft.supervisor.stack import running_stack
from foredraft.wire.channel import public_channel

PASS_MS = 250.0
CALLS = 10


@pytest.mark.slow
@pytest.mark.asyncio
async def test_calls_are_answered_within_a_pass(tmp_path: Path) -> None:
    """Order is what counts: ten health calls and a cancel are done before the next token."""
    config = StackConfig(
        grpc_host="127.0.0.1",
        grpc_port=0,
        model=make_tiny_directory(tmp_path / "stand-in"),
        fake_target=FakeEngine(PASS_MS),
        fake_draft=FakeEngine(1.0, 0.5),
        log_level="error",
    )
    async with running_stack(config) as stack:
        await stack.ready()
        async with (
            AsyncClient(stack.local_address) as client,
            public_channel(stack.local_address) as channel,
        ):
            health = health_pb2_grpc.HealthStub(channel)
            async with client.stream("one", max_tokens=4) as running:
                deltas = aiter(running)
                await anext(deltas)
                second = asyncio.create_task(client.generate("two", max_tokens=1))
                next_delta = asyncio.ensure_future(anext(deltas))
                for _ in range(CALLS):
                    answer = await health.Check(health_pb2.HealthCheckRequest())
                    assert answer.status == health_pb2.HealthCheckResponse.SERVING
                second.cancel()
                await asyncio.gather(second, return_exceptions=True)
                assert not next_delta.done()
                assert (await next_delta).token_ids
