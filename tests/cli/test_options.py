"""Wrong arguments: one line that names the flag, exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_models import make_tiny_llama

from foredraft.cli.main import build_parser, main
from foredraft.cli.up import stack_config
from foredraft.config import KV_MEMORY_MIB


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command that must not print anything else."""
    try:
        code = main(arguments)
    except SystemExit as error:  # argparse's own refusals
        assert isinstance(error.code, int)
        code = error.code
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--http-port", "x"], "--http-port: must be a whole number from 0 to 65535"),
        (["serve", "gateway", "--http-listen", "8000"], "--http-listen: must be HOST:PORT"),
        (["up", "--fake-engine", "5"], "STEP_MS,DRAFT_MS[,TOP1], not 5: milliseconds are"),
        (["up", "--fake-engine", "5,1,2"], "TOP1 is a number from 0 to 1"),
        (["up", "--schedule", "later"], "argument --schedule: invalid choice"),
        (["up", "--grpc-port", "70000"], "--grpc-port: must be a whole number from 0 to 65535"),
        (["up", "--grpc-port", "a"], "--grpc-port: must be a whole number from 0 to 65535, not a"),
        (["up", "--max-nodes", "0"], "--max-nodes: must be a whole number from 1 to 2^31 - 1"),
        (["up", "--max-nodes", "x"], "--max-nodes: must be a whole number from 1 to 2^31 - 1"),
        (["up", "--kv-memory-mib", "0"], "--kv-memory-mib: must be a whole number from 1 to"),
        (["run", "hi", "--suffix-store", "-1"], "--suffix-store: must be a whole number from 0 to"),
        (["up", "--draft", "none", "--speculation", "model"], "--draft must be a model directory"),
        (["up", "--dtype", "int3"], "argument --dtype: invalid choice"),
        (["serve", "draft", "--listen", "unix:d", "--dtype", "fp8"], "argument --dtype: invalid"),
        (["serve", "draft", "--listen", "unix:d", "--dtype", "int8"], "argument --dtype: invalid"),
        (
            ["serve", "verify", "--listen", "unix:v", "--dtype", "fp8", "--max-depth", "65"],
            "--max-depth must be at most 64 with --dtype fp8",
        ),
        (
            ["serve", "verify", "--listen", "unix:v", "--dtype", "fp8", "--max-nodes", "129"],
            "--max-nodes must be at most 128 with --dtype fp8",
        ),
        (["generate", "hi", "--logit-bias", "5"], "--logit-bias: must be ID=BIAS"),
        (["generate", "hi", "--logit-bias", "a=1"], "ID a whole number from 0 to 2^31 - 1"),
        (["generate", "hi", "--logit-bias", "5=x"], "BIAS a number from -1000 to 1000"),
        (["generate", "hi", "--stop-token-ids", "1", "x"], "--stop-token-ids: must be a whole"),
        (["generate", "hi", "--top-p", "nan"], "--top-p: must be a number above 0 to 1, not nan"),
        (["generate", "hi", "--seed", "1.5"], "--seed: must be a whole number from 0 to 2^64 - 1"),
        (["generate", "hi", "--stop", ""], "stop must be strings of at least one character"),
        (["bench", "nothing"], "argument NAME: invalid choice"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_arguments_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, error = run(capsys, *arguments)
    assert code == 2
    assert message in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-tokens", "0"], "--max-tokens: must be a whole number from 1 to 2^31 - 1, not 0"),
        (["--min-tokens", "300"], "min_tokens must be at most max_tokens, which is 256"),
        (["--stop", ""], "stop must be strings"),
        (["--speculation", "model"], "--draft must be a model directory or id, or auto"),
        (["--draft-kv-memory-mib", "9"], "--draft-kv-memory-mib must be left out without a draft"),
        (["--draft-kv-memory-mib", "0"], "--draft-kv-memory-mib: must be a whole number from 1"),
    ],
)
def test_run_looks_at_its_arguments_before_the_model(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, error = run(capsys, "run", "hi", "--model", "no-such-model", *arguments)
    assert code == 2
    assert message in error and "no-such-model" not in error


DRAFTS = [
    (("up", "--draft"), "--draft"),
    (("run", "hi", "--draft"), "--draft"),
    (("serve", "draft", "--listen", "unix:d", "--model"), "--model"),
]


def test_a_wrong_directory_is_told_before_a_model_is_fetched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "empty"))
    for arguments, option in DRAFTS:
        code, error = run(capsys, *arguments, "no-such-draft")
        names = "none, auto, a local directory or a known id (smollm2-135m-instruct)"
        assert error == f"foredraft: {option} must be {names}, not 'no-such-draft'\n" and code == 2
        code, error = run(capsys, *arguments, str(tmp_path))
        told = f"foredraft: {option} {tmp_path}: config.json is missing from the model directory"
        assert error == f"{told}\n" and code == 1
    assert not (tmp_path / "empty").exists()


def test_both_models_have_memory_of_their_own(tmp_path: Path) -> None:
    model = str(make_tiny_llama(tmp_path / "tiny"))
    for given, expected in (([], KV_MEMORY_MIB), (["--draft-kv-memory-mib", "9"], 9)):
        flags = ["up", "--model", model, "--draft", model, "--kv-memory-mib", "7", *given]
        config = stack_config(build_parser().parse_args(flags), "127.0.0.1", 0)
        assert (config.kv_memory_mib, config.draft_kv_memory_mib) == (7, expected)


def test_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, option in (
        (("up", "--grpc-port", "0", "--model"), "--model"),
        (("serve", "gateway", "--grpc-listen", ":0", "--verify", "unix:v", "--model"), "--model"),
        (("serve", "draft", "--listen", "unix:d", "--target"), "--target"),
        (("models", "path"), "ID"),
        (("models", "pack-draft", "--out", "new.safetensors"), "DIR"),
        (("models", "unpack-draft", "file", "--target"), "--target"),
        (("train-draft", "--output", "new", "--prompts", "file", "--target"), "--target"),
    ):
        code, error = run(capsys, *arguments, "no-such-model")
        allowed = "a local directory or a known id (smollm2-135m-instruct), not 'no-such-model'"
        assert error == f"foredraft: {option} must be {allowed}\n" and code == 2


def test_models_path_prints_the_directory_alone(
    capsys: pytest.CaptureFixture[str], default_model: Path
) -> None:
    assert main(["models", "path"]) == 0
    assert capsys.readouterr().out == f"{default_model}\n"


def test_help_needs_no_torch() -> None:
    assert "torch" not in _modules_after("build_parser().format_help()")


def test_sampling_flags_become_the_arguments_of_the_sdk() -> None:
    from foredraft.cli.generate import sampling_arguments

    flags = ["--max-tokens", "5", "--top-p", "0.9", "--stop", "a", "--stop", "b", "--ignore-eos"]
    flags += ["--logit-bias", "7=-100", "--logit-bias", "8=1.5", "--stop-token-ids", "3", "4"]
    args = build_parser().parse_args(["generate", "hi", *flags])
    assert sampling_arguments(args) == {
        "max_tokens": 5,
        "top_p": 0.9,
        "stop": ["a", "b"],
        "stop_token_ids": [3, 4],
        "logit_bias": {7: -100.0, 8: 1.5},
        "ignore_eos": True,
    }
    assert sampling_arguments(build_parser().parse_args(["generate", "hi"])) == {}


def _modules_after(expression: str) -> set[str]:
    """Modules of a fresh process after it evaluated ``expression`` of the command line."""
    code = (
        "import sys; from foredraft.cli.main import build_parser; "
        f"{expression}; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
