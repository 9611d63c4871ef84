"""A stack that wants keys: where commands take theirs from, and that they never show it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.fakes import FakeVerify, gateway, identity, worker
from support.http_door import Words
from support.tiny_models import make_tiny_tokenizer

from foredraft.cli.connection import Connection
from foredraft.cli.main import build_parser, main
from foredraft.config import API_KEY_VARIABLE
from foredraft.tokenizer_hash import tokenizer_identity

KEY = "canary-123"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_tokenizer(tmp_path / "tiny", 259)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\n{KEY}\nanother\n")
    return file


async def ask(*arguments: str, said: bytes = b"", key: str | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    pipe = asyncio.subprocess.PIPE
    variable = [f"{API_KEY_VARIABLE}={key}"] if key is not None else ["-u", API_KEY_VARIABLE]
    command = ["env", *variable, sys.executable, "-m", "foredraft", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    out, err = await process.communicate(said)
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.asyncio
async def test_a_stack_with_keys_is_talked_to(model: Path, keys: Path, tmp_path: Path) -> None:
    made = tokenizer_identity(model)
    words = Words(model)
    verify = FakeVerify(identity(made.hash, made.vocab_size), [words.end("you")])
    wrong = tmp_path / "wrong"
    wrong.write_text("canary-456")
    async with (
        worker(verify, "127.0.0.1:0") as at,
        gateway(model, at, api_keys=keys) as running,
    ):
        generate = "generate", "hi", "--address", running.address
        chat = "chat", "--address", running.address
        from_file = "--api-key-file", str(keys)
        answered = await asyncio.gather(
            ask(*generate, *from_file, key="canary-456"),
            ask(*generate, key=KEY),
            ask(*chat, *from_file, said=b"hi\n"),
            ask(*chat, said=b"hi\n", key=KEY),
        )
        refused = await asyncio.gather(
            ask(*generate),
            ask(*generate, "--api-key-file", str(wrong), key=KEY),
            ask(*chat, key="canary-456"),
        )
    assert answered == [(0, "you\n", "")] * 4
    for code, out, error in refused:
        assert (code, out) == (1, "") and error.count("\n") == 1
        assert "authorization must be Bearer" in error and "canary" not in error


@pytest.mark.parametrize("command", [["generate", "hi"], ["chat"]])
@pytest.mark.parametrize(
    ("content", "code", "fault"),
    [
        (None, 1, "No such file or directory"),
        ("", 1, "holds no key"),
        ("# canary", 1, "holds no key"),
        ("canary and more", 2, "must be printable ASCII without spaces"),
        ("canary-ü", 2, "must be printable ASCII without spaces"),
    ],
)
def test_a_file_that_holds_no_key_is_told(
    command: list[str],
    content: str | None,
    code: int,
    fault: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    assert main([*command, "--api-key-file", str(file)]) == code
    error = capsys.readouterr().err
    assert f"--api-key-file {file}" in error and fault in error
    assert error.count("\n") == 1 and "canary" not in error


def test_a_variable_that_holds_no_key_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "canary key")
    assert main(["generate", "hi"]) == 2
    error = capsys.readouterr().err
    assert error == "foredraft: FOREDRAFT_API_KEY must be printable ASCII without spaces\n"


def test_a_key_is_not_part_of_a_text() -> None:
    assert KEY not in repr(Connection("localhost:1", KEY))


def test_help_says_what_a_comment_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["up", "--help"])
    assert "lines that begin with # are comments" in " ".join(capsys.readouterr().out.split())
