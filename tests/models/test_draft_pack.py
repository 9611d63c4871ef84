"""Packed drafts: what comes out is what went in, beside the target that it was made for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.draft_logits import known_ids, load_own_draft
from support.reduced import FILE, write_vocabulary
from support.tiny_drafts import make_tiny_draft
from support.tiny_models import make_tiny_llama, make_tiny_model
from transformers import AutoModelForCausalLM

from draft_service.identity import read_target
from foredraft.cli.main import main
from foredraft.cli.options import find_draft, find_models
from foredraft.engine.model_config import UnsupportedModel
from foredraft.models.catalog import KNOWN_DRAFTS, KNOWN_MODELS, KnownModel
from foredraft.models.draft_pack import read_pack
from foredraft.models.draft_packing import pack_draft
from foredraft.models.draft_unpacking import unpack_draft
from foredraft.models.fetch import ModelError
from foredraft.models.int8_rows import Int8Rows
from foredraft.models.resolve import wants_draft

WEIGHTS = "model.safetensors"
IDS = [0, 2, 5, 100]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def draft(target: Path) -> Path:
    return make_tiny_draft(target.parent / "draft", target)


@pytest.fixture(scope="module")
def packed(target: Path, draft: Path) -> Path:
    """The draft with a reduced vocabulary as one file."""
    file = target.parent / "tiny-draft.safetensors"
    pack_draft(write_vocabulary(draft, IDS), target).write(file)
    return file


def test_no_weight_is_off_by_more_than_half_a_scale() -> None:
    random = np.random.default_rng(0)
    weight = random.normal(size=(50, 300)).astype(np.float32)
    weight *= np.exp(random.normal(size=(50, 1)) * 5).astype(np.float32)
    weight[3], weight[4] = 0.0, 1e-45
    rows = Int8Rows.of(weight)
    error = np.abs(rows.floats() - weight).max(axis=1)
    assert (error <= rows.scales * 0.50001 + 1e-45).all()
    assert rows.values.dtype == np.int8 and np.abs(rows.values).max(axis=1)[5:].min() == 127


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", {"dtype": torch.bfloat16, "shard": "20KB"}),
        ("qwen2", {"tie": False, "dtype": torch.float16}),
        ("qwen3", {"tie": False}),
    ],
    ids=["tied", "bfloat16-sharded", "biases-untied", "head-norms-untied"],
)
def test_a_round_trip(tmp_path: Path, family: str, options: dict[str, object]) -> None:
    target = make_tiny_model(tmp_path / "target", family, **options)
    options.pop("shard", None)
    draft = make_tiny_draft(tmp_path / "draft", target, family, **options)
    pack_draft(draft, target).write(tmp_path / "one.safetensors")
    pack = read_pack(tmp_path / "one.safetensors")
    directory = unpack_draft(tmp_path / "one.safetensors", target)

    before, after = load_file(draft / WEIGHTS), load_file(directory / WEIGHTS)
    assert before.keys() == after.keys()
    left_out = {"model.embed_tokens.weight", "lm_head.weight"} & before.keys()
    assert pack.left_out.keys() == left_out
    for name, weight in before.items():
        error = (after[name].float() - weight.float()).abs()
        if name in pack.matrices:
            scales = torch.from_numpy(pack.matrices[name].scales)
            assert (error.amax(1) <= scales * 0.50001).all() and error.max() > 0
        else:
            assert not error.any(), name
    packed_bytes = (tmp_path / "one.safetensors").stat().st_size
    assert packed_bytes < sum(pack.matrices[n].values.size for n in pack.matrices) + 20_000

    config = json.loads((directory / "config.json").read_text())
    assert config == json.loads((draft / "config.json").read_text()) | {"dtype": "float32"}
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (directory / name).read_bytes() == (target / name).read_bytes()
    card = (directory / "README.md").read_text()
    assert card.startswith((draft / "README.md").read_text())
    assert card.count("rounded to 8 bits") == 1 and "measured before that" in card
    assert pack_draft(directory, target).card == card  # it says so once
    assert not (directory / FILE).exists()


def test_engine_and_transformers_load_what_was_unpacked(packed: Path, target: Path) -> None:
    directory = unpack_draft(packed, target)
    assert known_ids(load_own_draft(directory)) == IDS
    model, told = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    assert model.dtype == torch.float32


def test_it_is_unpacked_once(packed: Path, target: Path, cache: Path) -> None:
    directory = unpack_draft(packed, target)
    assert directory.parent == cache / "drafts"
    made = (directory / WEIGHTS).stat()
    assert unpack_draft(packed, target) == directory
    assert (directory / WEIGHTS).stat() == made
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]


def test_two_processes_may_unpack_at_once_and_need_no_torch(
    packed: Path, target: Path, cache: Path
) -> None:
    arguments = ["models", "unpack-draft", str(packed), "--target", str(target)]
    code = (
        "import sys; from foredraft.cli.main import main; "
        f"sys.exit(main({arguments}) or 'torch' in sys.modules)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    [directory] = (cache / "drafts").iterdir()
    assert printed == {f"{directory}\n"}
    assert load_file(directory / WEIGHTS)


def test_another_target_is_refused_even_if_it_was_unpacked(packed: Path, target: Path) -> None:
    unpack_draft(packed, target)
    other = make_tiny_llama(target.parent / "other", seed=9)
    with pytest.raises(ModelError, match=r"was made for target, whose model\.embed.* of .*other"):
        unpack_draft(packed, other)


def test_a_draft_with_an_embedding_of_its_own_is_refused(tmp_path: Path, target: Path) -> None:
    own = make_tiny_llama(tmp_path / "own", seed=3)
    with pytest.raises(ModelError, match=r"draft own .*: weight model\.embed_tokens\.weight must"):
        pack_draft(own, target)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-10]), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x55"), "is damaged"),
        (lambda path: save_file({"a": torch.ones(1)}, path), "is no packed draft"),
    ],
    ids=["missing", "empty", "truncated", "changed", "other"],
)
def test_a_broken_file_is_named(tmp_path: Path, packed: Path, target: Path, change, text) -> None:
    file = tmp_path / "broken.safetensors"
    file.write_bytes(packed.read_bytes())
    change(file)
    with pytest.raises(ModelError, match=rf"{file} {text}"):
        unpack_draft(file, target)
    assert not (tmp_path / "cache").exists()


def test_the_commands(
    tmp_path: Path, draft: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, directory = tmp_path / "file.safetensors", tmp_path / "new"
    beside = ["--target", str(target)]
    assert main(["models", "pack-draft", str(draft), *beside, "--out", str(file)]) == 0
    unpack = ["models", "unpack-draft", str(file), *beside, "--out", str(directory)]
    assert main(unpack) == 0
    assert capsys.readouterr().out == f"{file}: 0.0 MB\n{directory}\n"
    assert (directory / WEIGHTS).exists()
    assert main(unpack) == 1
    assert "new is there already" in capsys.readouterr().err
    for out in ("/no/such/file", "", str(tmp_path)):
        assert main(["models", "pack-draft", str(draft), *beside, "--out", out]) == 2
        told = f"--out must be a file in a folder that is there, not {str(Path(out))!r}"
        assert told in capsys.readouterr().err


def test_a_draft_of_some_tokens_is_nobodys_target(draft: Path, packed: Path) -> None:
    assert (draft / FILE).exists()
    with pytest.raises(ModelError, match="can be a draft but no target"):
        pack_draft(draft, draft)
    with pytest.raises(ModelError, match="can be a draft but no target"):
        unpack_draft(packed, draft)
    with pytest.raises(UnsupportedModel, match="can be a draft but no target"):
        read_target(draft)


def test_the_draft_that_is_shipped_for_a_known_model(
    packed: Path, target: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = cache / "models" / "tiny"
    known.parent.mkdir(parents=True)
    known.symlink_to(target)
    monkeypatch.setitem(KNOWN_MODELS, "tiny", KnownModel("tiny", "", "", ""))
    assert find_models("tiny", "auto") == (known, None) and not wants_draft("auto", "tiny")
    monkeypatch.setitem(KNOWN_DRAFTS, "tiny", str(packed))
    found, drafted = find_models("tiny", "auto")
    assert found == known and drafted == unpack_draft(packed, target)
    assert find_draft("auto", str(target)) == drafted and wants_draft("auto", str(target))
    assert find_draft("none", "tiny") is None and not wants_draft("none", "tiny")
    assert find_draft("auto", str(packed.parent)) is None
