"""``foredraft bench`` tells a wrong option in one line, names it, and exits with status 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny_models import make_tiny_llama

from bench.compare import Sample, _parser, _summary
from foredraft.cli.faults import CommandError
from foredraft.cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", context=64)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit status and the last line of stderr, which is the only one but for argparse's usage."""
    try:
        code = main(["bench", *map(str, arguments)])
    except SystemExit as error:
        assert isinstance(error.code, int)
        code = error.code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 or lines[0].startswith("usage:")
    return code, lines[-1]


@pytest.mark.parametrize("name", ["compare", "perplexity"])
@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--prompts", "no-such-file", "--prompts must be a file to read: no-such-file: No such"),
        ("--limit", 0, "argument --limit: must be a whole number from 1 to 2^31 - 1, not 0"),
        ("--limit", -3, "argument --limit: must be a whole number from 1 to 2^31 - 1, not -3"),
        ("--json", "/proc/none/out.json", "--json must be a file that can be written"),
        ("--json", "/proc", "--json must be a file that can be written"),
    ],
)
def test_options_of_both(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: Path,
    name: str,
    option: str,
    value: object,
    text: str,
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "one"}\n')
    given = ("--prompts", file, "--model", model, option, value)
    code, line = run(capsys, name, *given)
    assert code == 2 and text in line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--speculation", "often"), "--speculation: must be of off, suffix, model, auto"),
        (("--speculation", "suffix,"), "--speculation: must be of off, suffix, model, auto"),
        (("--draft", "none", "--speculation", "model"), "--draft must be a model directory"),
        (("--max-tokens", 1), "--max-tokens: must be a whole number of at least 2"),
        (("--max-tokens", "x"), "--max-tokens: must be a whole number of at least 2"),
        (("--temperature", -1), "temperature must be a number from 0 to 100"),
        (("--dtype", "int4"), "--dtype: invalid choice: 'int4'"),
        (("--peer-dtype", "int4"), "--peer-dtype: invalid choice: 'int4'"),
        (("--peer", "vllm"), "--peer: must be of transformers, llama.cpp, with commas"),
        (("--peer", "llama.cpp"), "--peer-gguf must be the same model as a GGUF file"),
        (("--peer-gguf", "x.gguf"), "--peer-gguf must be the same model as a GGUF file"),
    ],
)
def test_options_of_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], text: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "one"}\n')
    code, line = run(capsys, "compare", "--prompts", file, *arguments)
    assert code == 2 and text in line


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--limit", 0, "argument --limit: must be a whole number from 1"),
        ("--sequences", 0, "argument --sequences: must be a whole number from 1"),
        ("--nodes", "x", "argument --nodes: must be a whole number from 1"),
        ("--json", "/proc", "--json must be a file that can be written"),
    ],
)
def test_options_of_wire(
    capsys: pytest.CaptureFixture[str], option: str, value: object, text: str
) -> None:
    code, line = run(capsys, "wire", option, value)
    assert code == 2 and text in line


@pytest.mark.parametrize("content", ["", "no json", '{"other": 1}'])
def test_prompts_of_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    code, line = run(capsys, "compare", "--prompts", file)
    assert code == 2 and line.startswith("foredraft: --prompts must be a file ")


@pytest.mark.parametrize(
    ("text", "arguments", "told"),
    [
        ("", (), "--prompts must be a text of at least two tokens"),
        ("a", (), "--prompts must be a text of at least two tokens"),
        ("abc", ("--window", 1), "--window: must be a whole number of at least 2"),
        ("abc", ("--window", 65), "--window must be at most the model's context, 64 tokens"),
        ("abc", ("--dtypes", "float32,int4"), "--dtypes: must be of auto, float32"),
    ],
)
def test_options_of_perplexity(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: Path,
    text: str,
    arguments: tuple[object, ...],
    told: str,
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(text)
    given = ("--window", 16, "--prompts", file, "--model", model)
    code, line = run(capsys, "perplexity", *given, *arguments)
    assert code == 2 and told in line


@pytest.mark.parametrize("name", ["compare", "perplexity", "wire"])
def test_a_model_that_cannot_be_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "one"}\n')
    code, line = run(capsys, name, "--prompts", file, "--model", tmp_path / "none")
    assert code == 2 and line.startswith("foredraft: --model must be a local directory or")


def test_perplexity_of_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    """33 tokens in windows of 16: the last one stands alone and says nothing."""
    file, out = tmp_path / "text.txt", tmp_path / "new" / "out.json"
    file.write_text("a" * 33)
    given = ("--prompts", file, "--model", model, "--window", 16, "--dtypes", "float32")
    assert main(["bench", "perplexity", *map(str, given), "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["tokens"] == 30
    assert report["perplexity"].keys() == {"float32"}
    assert "over 30 tokens" in capsys.readouterr().out


def test_answers_of_one_token_have_no_speed_of_decoding() -> None:
    args = _parser().parse_args(["--prompts", "rows.jsonl"])
    samples = [Sample("plain", 0, 1, 1.0, 1.0, 1, [5]), Sample("suffix", 0, 2, 1.0, 0.5, 1, [5, 6])]
    with pytest.raises(CommandError, match="no prompt got two tokens or more"):
        _summary(samples, args)
