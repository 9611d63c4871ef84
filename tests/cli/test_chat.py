"""A conversation, as a pipe has it: lines in, answers out."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.fakes import FakeVerify, gateway, identity, until, worker
from support.http_door import Words
from support.tiny_models import make_tiny_tokenizer

from foredraft.tokenizer_hash import tokenizer_identity

Process = asyncio.subprocess.Process


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_tokenizer(tmp_path / "tiny", 259)


@asynccontextmanager
async def chat(model: Path, *flags: str) -> AsyncIterator[tuple[Process, FakeVerify]]:
    made = tokenizer_identity(model)
    verify = FakeVerify(identity(made.hash, made.vocab_size))
    pipe = asyncio.subprocess.PIPE
    async with worker(verify, "127.0.0.1:0") as address, gateway(model, address) as running:
        command = ["-m", "foredraft", "chat", "--address", running.address, *flags]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=pipe, stdout=pipe, stderr=pipe
        )
        try:
            yield process, verify
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def say(process: Process, verify: FakeVerify, text: str) -> int:
    """The number of the sequence that a line opens."""
    assert process.stdin is not None
    before = len(verify.opened)
    process.stdin.write(f"{text}\n".encode())
    await until(lambda: len(verify.opened) > before)
    return verify.opened[-1].seq_id


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode()


@pytest.mark.asyncio
async def test_answers_are_remembered_until_a_reset(model: Path) -> None:
    words = Words(model)

    def prompt(*turns: str) -> tuple[int, ...]:
        return words.ids("".join(f"{turn}</s>" for turn in turns) + "assistant: ")

    async with chat(model, "--system", "be", "--max-tokens", "50") as (process, verify):
        verify.commit(await say(process, verify, "hi"), words.end("you"))
        assert await line(process) == "you\n"
        verify.commit(await say(process, verify, "\n  more "), words.end("no"))
        assert await line(process) == "no\n"
        verify.commit(await say(process, verify, "/reset\nhi"), words.end("yes"))
        assert await line(process) == "yes\n"
        first, second, third = verify.opened
        assert first.prompt == third.prompt == prompt("system: be", "user: hi")
        turns = ["system: be", "user: hi", "assistant: you", "user: more"]
        assert second.prompt == prompt(*turns)
        assert first.params.max_tokens == 50
        assert await process.communicate(b"/exit\nnever\n") == (b"", b"")
        assert process.returncode == 0


@pytest.mark.asyncio
async def test_an_interrupt_ends_the_answer_alone(model: Path) -> None:
    words = Words(model)
    async with chat(model) as (process, verify):
        seq_id = await say(process, verify, "hi")
        verify.commit(seq_id, words.say("you"))
        assert process.stdout is not None
        assert await process.stdout.readexactly(3) == b"you"
        process.send_signal(signal.SIGINT)
        await until(lambda: [closed.seq_id for closed in verify.closed] == [seq_id])
        assert await line(process) == " …\n"
        await say(process, verify, "go on")
        shown = "user: hi</s>assistant: you</s>user: go on</s>assistant: "
        assert verify.opened[-1].prompt == words.ids(shown)


@pytest.mark.asyncio
async def test_a_question_that_is_refused_is_forgotten(model: Path) -> None:
    words = Words(model)
    async with chat(model) as (process, verify):
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"a" * 500 + b"\n")
        assert b"foredraft: messages must be at most 255 tokens" in await process.stderr.readline()
        await say(process, verify, "hi")
        assert verify.opened[-1].prompt == words.ids("user: hi</s>assistant: ")
