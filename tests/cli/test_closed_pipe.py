"""A reader that has seen enough, such as ``head``, ends a command without a complaint."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from support.fakes import FakeVerify, Round, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft.tokenizer_hash import tokenizer_identity

FOREDRAFT = [sys.executable, "-m", "foredraft"]
CLOSED_PIPE = 141


@pytest.mark.parametrize("argument", ["doctor", "--help"])
def test_what_is_printed_for_nobody(argument: str) -> None:
    # With a buffer, as it is by default, the fault comes only when the command ends.
    command = ["env", "-u", "PYTHONUNBUFFERED", *FOREDRAFT, argument]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == CLOSED_PIPE


@pytest.mark.asyncio
async def test_an_answer_is_cancelled(tmp_path: Path) -> None:
    model = make_tiny_tokenizer(tmp_path / "tiny", 259)
    made = tokenizer_identity(model)
    verify = FakeVerify(identity(made.hash, made.vocab_size))
    async with worker(verify, "127.0.0.1:0") as address, gateway(model, address) as running:
        command = [*FOREDRAFT, "generate", "hello", "--address", running.address]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert process.stdout is not None and process.stderr is not None
            await until(lambda: verify.live)
            [seq_id] = verify.live
            verify.commit(seq_id, Round((70, 71)))
            assert await asyncio.to_thread(process.stdout.read, 1)
            process.stdout.close()
            verify.commit(seq_id, Round((72, 73)))  # for nobody
            assert await asyncio.to_thread(process.wait, 30.0) == CLOSED_PIPE
            assert process.stderr.read() == b""
            await until(lambda: not verify.live)
        finally:
            process.kill()
            process.wait()
