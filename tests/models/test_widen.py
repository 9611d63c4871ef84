"""Widened models: another shape, the same function, and nothing random in it."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.plain_decoding import decode
from support.tiny_models import make_tiny_llama, make_tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from foredraft.config import EngineConfig
from foredraft.engine.model_config import UnsupportedModel, read_model_config
from foredraft.engine.runner import ModelRunner, SequenceRows
from foredraft.models.fetch import ModelError
from foredraft.models.widen.shape import Shape
from foredraft.models.widen.wide_directory import WideDirectory, read_widening
from foredraft.models.widen.wide_weights import WideWeights
from foredraft.models.widen.widening import plan_widening
from foredraft.params import InvalidField, SamplingParams

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WIDE = Shape(3, 96, 300, 12, 3, 32)  # what a tiny Llama of the default sizes fits in
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Rounding: float32 has 2^-24 = 6e-8. The factors sqrt(2) and sqrt(h/H) are rounded once, and sums
# have their terms in another order; some ten products, softmaxes and norms one after another let
# that grow to 2e-5 in logits up to 8, as it does between the engine and transformers on one model.
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@dataclass(frozen=True)
class Case:
    family: str
    heads: int
    kv_heads: int
    head_dim: int
    shape: Shape
    hidden: int = 64
    more: dict[str, Any] = field(default_factory=dict)

    def source(self, directory: Path) -> Path:
        """The epsilon is so large that logits would show it, were it another one."""
        return make_tiny_model(
            directory / "source",
            self.family,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            norm_spread=0.3,
            rms_norm_eps=0.01,
            **self.more,
        )


CASES = {
    "groups-of-1": Case("llama", 4, 4, 16, Shape(2, 80, 160, 16, 8, 16), more={"tie": False}),
    "groups-of-3-twice-as-wide": Case("llama", 9, 3, 64, Shape(3, 96, 200, 32, 8, 128), hidden=72),
    "groups-of-4-untied": Case("llama", 8, 2, 8, Shape(3, 96, 130, 12, 3, 16, untied=True)),
    "groups-of-7-stretched": Case(
        "llama",
        heads=7,
        kv_heads=1,
        head_dim=80,
        shape=Shape(hidden=96, heads=16, kv_heads=2),
        hidden=70,
        more={"rope_parameters": LLAMA3},
    ),
    "mistral": Case(
        "mistral",
        heads=8,
        kv_heads=8,
        head_dim=8,
        shape=Shape(3, 72, 256, 9, 9, 16),
        more={"tie": False, "sliding_window": None},
    ),
    "biases": Case("qwen2", 8, 2, 8, Shape(3, 96, 300, 12, 3, 16)),
    "head-norms": Case("qwen3", 8, 2, 16, Shape(3, 120, 300, 12, 3, 32), more={"tie": False}),
    "head-norms-as-wide": Case("qwen3", 4, 2, 16, Shape(3, 96, 300, 12, 4, 16)),
}


def widen(
    source: Path,
    shape: Shape = WIDE,
    *,
    vocabulary: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
) -> Path:
    """The widened model beside ``source``, in files of 200 kB."""
    made = source.with_name(f"wide-{seed}-{dtype}")
    directory = WideDirectory(source, read_widening(source, shape, vocabulary), dtype, seed)
    assert sum(directory.write(made, 200_000)) == directory.weight_bytes
    return made


def tensors(directory: Path) -> dict[str, Tensor]:
    return {k: v for file in directory.glob("*.safetensors") for k, v in load_file(file).items()}


def load_theirs(directory: Path) -> Any:
    model, told = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    assert not told["missing_keys"] and not told["unexpected_keys"]
    return model


@torch.inference_mode()
def logits_of(directory: Path, tokens: Tensor) -> Tensor:
    logits: Tensor = load_theirs(directory)(tokens).logits
    return logits


@torch.inference_mode()
def largest(directory: Path, tokens: Tensor) -> float:
    """The largest number that a linear layer makes."""
    model, seen = load_theirs(directory), []
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda *call: seen.append(call[2].abs().max().item()))
    assert model(tokens).logits.isfinite().all()
    return max(seen)


def load_ours(directory: Path) -> ModelRunner:
    settings = EngineConfig(directory, dtype="float32", kv_memory_mib=8)
    return ModelRunner.load(settings)


def last_logits(runner: ModelRunner, tokens: list[int]) -> Tensor:
    blocks = runner.kv.allocate(runner.kv.blocks_for(len(tokens)))
    runner.prefill(blocks, tokens[:-1], 0)
    last = len(tokens) - 1
    [logits] = runner.forward([SequenceRows(blocks, last, tokens[-1:], [(last,)])])
    runner.kv.free(blocks)
    return logits


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_computes_what_its_source_does(case: Case, tmp_path: Path) -> None:
    source = case.source(tmp_path)
    made = widen(source, case.shape)
    target = read_widening(source, case.shape).target
    assert read_model_config(made) == target and target.context_length == 32_768

    prompt = random.Random(0).choices(range(3, 128), k=40)
    narrow, wide = load_ours(source), load_ours(made)
    ours = last_logits(wide, prompt)
    torch.testing.assert_close(ours, last_logits(narrow, prompt), **CLOSE)
    answers = [decode(runner, prompt, 12, SamplingParams()) for runner in (narrow, wide)]
    assert answers[0] == answers[1]

    tokens = torch.tensor(answers[:1])
    old, new = logits_of(source, tokens), logits_of(made, tokens)
    torch.testing.assert_close(new, old, **CLOSE)
    torch.testing.assert_close(new[0, len(prompt) - 1], ours, **CLOSE)
    assert new.argmax(-1)[0, len(prompt) - 1 : -1].tolist() == answers[1][len(prompt) :]
    assert old.std() > 1  # flat ones would be close to anything


@pytest.mark.parametrize("name", ["groups-of-3-twice-as-wide", "biases", "head-norms"])
def test_what_is_random_changes_no_bit(name: str, tmp_path: Path) -> None:
    """And what flows is finite, and about as large as in the source."""
    case = CASES[name]
    source = case.source(tmp_path)
    first, second = (widen(source, case.shape, seed=seed) for seed in (0, 1))
    before, after = tensors(first), tensors(second)
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    noisy = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    assert changed == {key for key in before if key.split(".")[-2] in noisy}
    tokens = torch.arange(3, 67)[None]
    assert torch.equal(logits_of(first, tokens), logits_of(second, tokens))
    assert largest(first, tokens) < 2 * largest(source, tokens)


def test_what_is_zero_and_what_is_not(tmp_path: Path) -> None:
    """Counted: what the source does not fill is zero or random as its place asks for."""
    case = CASES["groups-of-3-twice-as-wide"]
    source = case.source(tmp_path)
    theirs, made = tensors(source), tensors(widen(source, case.shape))
    widening = read_widening(source, case.shape)
    old, new = widening.source, widening.target
    added_rows = {
        "q_proj": (new.heads - old.heads) * new.head_dim,
        "k_proj": (new.kv_heads - old.kv_heads) * new.head_dim,
        "v_proj": (new.kv_heads - old.kv_heads) * new.head_dim,
        "gate_proj": new.intermediate - old.intermediate,
        "up_proj": new.intermediate - old.intermediate,
    }
    for name, tensor in made.items():
        kind, found = name.split(".")[-2], int(tensor.count_nonzero())
        added = "layers.2." in name  # the source has two
        if added and kind in ("o_proj", "down_proj"):
            assert found == 0, name
        elif added or tensor.dim() == 1:
            assert found == tensor.numel(), name
        else:
            own = int(theirs[name].count_nonzero())
            assert found == own + added_rows.get(kind, 0) * new.hidden, name
        if added and kind in added_rows:
            like = theirs[name.replace("layers.2.", "layers.1.")].std().item()
            scale = widening.scales.query if kind == "q_proj" else 1
            assert tensor.std().item() == pytest.approx(scale * like, rel=0.1), name


def test_ids_stay_what_they_were(tmp_path: Path) -> None:
    """A tied embedding stays one matrix, or becomes two that are equal; no row is rounded."""
    source = make_tiny_llama(tmp_path / "source", dtype=torch.bfloat16)
    embedding = tensors(source)[EMBEDDING]
    one = widen(source, Shape(hidden=96), dtype="bfloat16")
    two = widen(source, Shape(hidden=96, untied=True), seed=1, dtype="bfloat16")
    for made in (one, two):
        wide = tensors(made)[EMBEDDING]
        assert wide.dtype == embedding.dtype and not wide[:, 64:].any()
        assert torch.equal(wide[:, :64], embedding)
    assert read_model_config(one).tied and HEAD not in tensors(one)
    assert not read_model_config(two).tied
    assert torch.equal(tensors(two)[HEAD], tensors(two)[EMBEDDING])


def test_padding_rows_are_no_tokens(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source")
    made = widen(source, vocabulary=192)
    narrow, wide = load_ours(source), load_ours(made)
    assert wide.info.vocab_size == narrow.info.vocab_size == 128
    assert read_model_config(made).vocab_rows == 192
    assert not tensors(made)[EMBEDDING][128:].any()
    torch.testing.assert_close(last_logits(wide, [3, 4]), last_logits(narrow, [3, 4]), **CLOSE)
    with pytest.raises(InvalidField, match="--pad-vocabulary must be at least the source's 128 ro"):
        read_widening(source, Shape(), 127)
    more = make_tiny_llama(tmp_path / "more", real_vocab=150)
    with pytest.raises(InvalidField, match=r"left out: the source has 128 rows for .* 150 i"):
        read_widening(more, Shape(), 160)


def test_layers_are_made_without_files(tmp_path: Path) -> None:
    """As an engine makes them on its device; what is written has the same bits, rounded."""
    source = make_tiny_llama(tmp_path / "source")
    theirs = tensors(source)
    make = WideWeights(theirs.__getitem__, plan_widening(read_model_config(source), WIDE))
    made = {name: make(name) for name in (EMBEDDING, "model.norm.weight")}
    for number in range(3):
        made |= make.layer(number)
    written = tensors(widen(source, dtype="bfloat16"))
    assert made.keys() == written.keys()
    for name, tensor in made.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor.to(torch.bfloat16), written[name]), name
    for name, tensor in tensors(source).items():
        assert torch.equal(theirs[name], tensor), name  # it belongs to whoever read it
    for name in ("model.layers.0.mlp.up_proj.bias", "model.layers.3.input_layernorm.weight", "lm"):
        with pytest.raises(KeyError):
            make(name)


def test_files_are_of_bounded_size(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source")
    made = widen(source)
    index = json.loads((made / "model.safetensors.index.json").read_text())
    sizes = {
        file.name: sum(tensor.nbytes for tensor in load_file(file).values())
        for file in made.glob("*.safetensors")
    }
    assert len(sizes) > 2 and max(sizes.values()) <= 200_000
    assert sum(sizes.values()) == index["metadata"]["total_size"]
    assert set(index["weight_map"].values()) == set(sizes)
    assert (made / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert "# source, widened" in (made / "README.md").read_text()


def test_sources_that_are_no_targets_are_refused(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"weight model\.layers\.1\.mlp\.up_proj.* finite"):
        widen(source)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    save_file({"ids": torch.arange(4)}, source / "draft_vocabulary.safetensors")
    with pytest.raises(UnsupportedModel, match="it can be a draft but no target"):
        read_widening(source, WIDE)


def test_a_disk_without_room_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tiny_llama(tmp_path / "source")
    directory = WideDirectory(source, read_widening(source, WIDE), "float32", 0)
    free = directory.weight_bytes  # but no room for the other files
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=free))
    text = rf"wide takes \d+ bytes \(0\.0 GB\), but {free} bytes \(0\.0 GB\) are free"
    with pytest.raises(ModelError, match=text):
        directory.check_room(tmp_path / "wide")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=free + 2**21))
    directory.check_room(tmp_path / "wide")
