"""The commands that start the real stack, as a user does: another process, real signals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from support.processes import running
from support.tiny_models import make_tiny_llama

from foredraft import Client
from foredraft.supervisor.address import claim_port

FOREDRAFT = [sys.executable, "-m", "foredraft"]
PIDS = re.compile(r"draft pid=(\d+) verify pid=(\d+) gateway pid=(\d+)\n")
READY = re.compile(r"ready grpc=(127\.0\.0\.1:\d+)(?: http=(127\.0\.0\.1:\d+))?\n")


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", vocab=300)


@pytest.fixture
def up(tiny_model: Path) -> Iterator[subprocess.Popen[str]]:
    command = [*FOREDRAFT, "up", "--grpc-port", "0", "--model", str(tiny_model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def read_match(process: subprocess.Popen[str], pattern: re.Pattern[str]) -> re.Match[str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = pattern.fullmatch(line)
    assert found is not None, line
    return found


def test_the_stack_answers_and_a_signal_ends_it(up: subprocess.Popen[str]) -> None:
    pids = [int(pid) for pid in read_match(up, PIDS).groups()]
    address = read_match(up, READY).group(1)
    with Client(address) as client:
        assert len(client.generate("abc", max_tokens=5, ignore_eos=True).token_ids) == 5
    assert all(running(pid) for pid in pids)

    up.send_signal(signal.SIGTERM)
    assert up.wait() == 0
    assert not any(running(pid) for pid in pids)


@pytest.mark.slow
def test_both_doors(tiny_model: Path) -> None:
    command = [*FOREDRAFT, "up", "--grpc-port", "0", "--http-port", "0", "--model", str(tiny_model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            read_match(process, PIDS)
            _grpc, http = read_match(process, READY).groups()
            base = f"http://{http}/v1"
            with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as client:
                answer = client.completions.create(
                    model="", prompt="abc", max_tokens=5, extra_body={"ignore_eos": True}
                )
            assert answer.usage is not None and answer.usage.completion_tokens == 5
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            process.kill()


def test_a_signal_before_ready_ends_it_too(up: subprocess.Popen[str]) -> None:
    pids = [int(pid) for pid in read_match(up, PIDS).groups()]
    up.send_signal(signal.SIGINT)
    assert up.wait() == 0
    assert not any(running(pid) for pid in pids)


@pytest.mark.slow
def test_no_process_outlives_a_supervisor_that_was_killed(up: subprocess.Popen[str]) -> None:
    pids = [int(pid) for pid in read_match(up, PIDS).groups()]
    read_match(up, READY)
    up.kill()
    while any(running(pid) for pid in pids):
        time.sleep(0.02)  # the test's own time limit ends a wait for an orphan


def test_run_prints_an_answer_and_statistics(tiny_model: Path) -> None:
    command = [*FOREDRAFT, "run", "abc", "--max-tokens", "6", "--ignore-eos"]
    done = subprocess.run(
        [*command, "--model", str(tiny_model)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    statistics = done.stdout.splitlines()[-1]
    numbers = r"\[6 tokens, [\d.]+ tokens/s, \d+ steps, [\d.]+ tokens/step, \d+% hit steps\]"
    assert re.fullmatch(numbers, statistics)


def test_generate_without_a_stack_is_one_line(unused_port: int) -> None:
    command = [*FOREDRAFT, "generate", "hi", "--address", f"127.0.0.1:{unused_port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("foredraft: no server answers at 127.0.0.1")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def unused_port() -> int:
    return claim_port("127.0.0.1", 0)
