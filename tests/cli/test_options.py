"""Wrong arguments: one line that names the flag, exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foredraft.cli.main import build_parser, main


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
        (["up", "--http-port", "8000"], "--http-port is not supported"),
        (["up", "--schedule", "held"], "--schedule held is not supported"),
        (["up", "--schedule", "free"], "--schedule free is not supported"),
        (["up", "--schedule", "later"], "argument --schedule: invalid choice"),
        (["up", "--grpc-port", "70000"], "argument --grpc-port: must be from 0 to 65535"),
        (["up", "--max-nodes", "0"], "argument --max-nodes: must be at least 1"),
        (["up", "--speculation", "model"], "--draft must be a model directory or id"),
        (["up", "--dtype", "int3"], "argument --dtype: invalid choice"),
        (["generate", "hi", "--logit-bias", "5"], "must be ID=BIAS"),
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


def test_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, error = run(capsys, "up", "--grpc-port", "0", "--model", "no-such-model")
    assert code == 1
    assert error.count("\n") == 1
    assert "model must be a local directory or one of: smollm2-135m-instruct" in error


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
