"""A reader that has seen enough, such as ``head``, ends a command without a complaint."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.fakes import FakeVerify, Round, gateway, identity, until, worker
from support.tiny_models import make_tiny_tokenizer

from foredraft.telemetry.names import OPERATION_NAME
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


def test_a_page_is_written_for_somebody_else(tmp_path: Path) -> None:
    file, page = tmp_path / "t.jsonl", tmp_path / "page.html"
    span = {"name": "chat m", "role": "gateway", "trace_id": "ab" * 16, "span_id": "1" * 16}
    span |= {"parent_id": "", "start_ns": 0, "end_ns": 10**6, "events": [], "links": []}
    file.write_text(json.dumps(span | {"attributes": {OPERATION_NAME: "chat"}}))
    command = [*FOREDRAFT, "trace", str(file), "--html", str(page)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == CLOSED_PIPE
    assert page.read_text().startswith("<!doctype html>")


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
