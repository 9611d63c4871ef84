"""Directories that would be served as nonsense are refused in words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import make_tiny_llama, make_tiny_model
from tokenizers import Tokenizer, models
from torch import Tensor

from foredraft.config import EngineConfig
from foredraft.engine.model_config import UnsupportedModel, read_model_config
from foredraft.engine.runner import ModelRunner
from foredraft.engine.weights import check_weights
from foredraft.tokenizer_hash import tokenizer_identity

COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)
OWN = ("hidden_size", "num_attention_heads")  # without head_dim, which would follow from these
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path)


def load(directory: Path) -> None:
    ModelRunner.load(EngineConfig(directory, device="cpu", kv_memory_mib=1))


def edit(file: Path, changes: dict[str, Any]) -> None:
    """Change fields of a JSON file; None takes the field away."""
    content = json.loads(file.read_text()) if file.exists() else {}
    content |= changes
    file.write_text(json.dumps({name: v for name, v in content.items() if v is not None}))


def edit_weights(file: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(file)
    change(weights)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, file)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("architectures", ["OtherForCausalLM"]),
        ("architectures", 3),
        ("architectures", [["LlamaForCausalLM"]]),
        ("architectures", ["Qwen3ForCausalLM"]),  # model_type says something else
        ("model_type", "mistral"),
        ("attention_bias", True),
        ("attention_bias", "no"),
        ("mlp_bias", True),
        ("use_sliding_window", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("layer_types", [["full_attention"]]),
        ("layer_types", "full_attention"),
        ("quantization_config", {"quant_method": "any"}),
        ("hidden_act", "gelu"),
        ("partial_rotary_factor", 0.5),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 10_000.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"partial_rotary_factor": 0.5}),
    ],
)
def test_options_we_do_not_run(directory: Path, option: str, value: object) -> None:
    edit(directory / "config.json", {option: value})
    with pytest.raises(UnsupportedModel, match=option):
        load(directory)


@pytest.mark.parametrize(
    ("family", "fields", "name"),
    [
        ("mistral", {"sliding_window": 0}, "sliding_window must be a whole number from 1"),
        ("mistral", {"sliding_window": "4096"}, "sliding_window must be a whole number from 1"),
        ("qwen2", {"attention_bias": False}, "attention_bias must be true in this family"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window must be false, not true"),
        ("qwen3", {"attention_bias": True}, "attention_bias must be false in this family"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 2}, "layer_types must be full_attention"),
    ],
)
def test_options_of_other_families_that_we_do_not_run(
    tmp_path: Path, family: str, fields: dict[str, object], name: str
) -> None:
    directory = make_tiny_model(tmp_path, family)
    edit(directory / "config.json", fields)
    with pytest.raises(UnsupportedModel, match=rf"^config\.json: {name}"):
        load(directory)


def test_the_window_where_none_is_named_is_the_librarys(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path, "mistral", context=8192, sliding_window=None)
    assert read_model_config(directory).context_length == 8192
    edit(directory / "config.json", {"sliding_window": None})
    assert read_model_config(directory).context_length == 4096


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        *((field, None, "but is missing") for field in COUNTS),
        *((field, value, "a whole number") for field in COUNTS for value in (0, -8, "8", 8.5)),
        ("hidden_size", True, "a whole number from 1"),
        ("hidden_size", 10**30, "a whole number from 1"),
        ("num_attention_heads", 3, "divisor of num_attention_heads"),
        ("num_key_value_heads", 3, "a divisor of num_attention_heads \\(4\\), not 3"),
        ("num_key_value_heads", 0, "a whole number"),
        ("head_dim", 0, "a whole number"),
        ("head_dim", 15, "even"),
        ("rms_norm_eps", None, "a number above 0, but is missing"),
        ("rms_norm_eps", float("nan"), "a number above 0"),
        ("rms_norm_eps", "1e-5", "a number above 0"),
        ("rope_parameters", [1], "an object"),
        ("rope_parameters", {"rope_theta": 0}, "rope_theta must be a number above 0"),
        ("rope_parameters", {"rope_type": "llama3"}, "low_freq_factor must be a number above 0"),
        ("rope_parameters", LLAMA3 | {"high_freq_factor": 1.0}, "above low_freq_factor"),
        ("rope_parameters", LLAMA3 | {"factor": None}, "factor must be a number"),
        ("tie_word_embeddings", "yes", "true or false"),
    ],
)
def test_fields_without_a_usable_value_are_named(
    directory: Path, field: str, value: object, allowed: str
) -> None:
    edit(directory / "config.json", {field: value, **({"head_dim": None} if field in OWN else {})})
    with pytest.raises(UnsupportedModel, match=rf"^config\.json: .*{allowed}") as caught:
        read_model_config(directory)
    assert field in str(caught.value)


def test_heads_must_divide_the_width(directory: Path) -> None:
    changes = {"head_dim": None, "num_attention_heads": 6, "num_key_value_heads": 2}
    edit(directory / "config.json", changes)
    with pytest.raises(UnsupportedModel, match=r"hidden_size must be a multiple of .* not 64"):
        read_model_config(directory)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("value", [128, -1, [2, 128], "2", [True], {}])
def test_ends_must_be_tokens(directory: Path, name: str, value: object) -> None:
    (directory / "generation_config.json").unlink()
    edit(directory / name, {"eos_token_id": value})
    with pytest.raises(UnsupportedModel, match=rf"^{name}: eos_token_id must be .*\(128\)"):
        read_model_config(directory)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"[1]", b"", b"no json", b"\xff\xfe", b"[" * 100_000])
def test_files_that_are_no_objects(directory: Path, name: str, content: bytes) -> None:
    (directory / name).write_bytes(content)
    with pytest.raises(UnsupportedModel, match=f"^{name} "):
        read_model_config(directory)


def test_a_directory_in_place_of_a_file(directory: Path) -> None:
    (directory / "config.json").unlink()
    (directory / "config.json").mkdir()
    with pytest.raises(UnsupportedModel, match=r"^config\.json cannot be read"):
        read_model_config(directory)


def test_null_is_the_default(directory: Path) -> None:
    expected = read_model_config(directory)
    file = directory / "config.json"
    nulls = dict.fromkeys(("head_dim", "rope_scaling", "hidden_act", "quantization_config"))
    file.write_text(json.dumps(json.loads(file.read_text()) | nulls))
    assert read_model_config(directory) == expected


@pytest.mark.parametrize("content", [None, b"{}", b"[1]", b"no json", b"\xff"])
def test_a_tokenizer_that_cannot_be_read(directory: Path, content: bytes | None) -> None:
    file = directory / "tokenizer.json"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"^tokenizer\.json "):
        load(directory)


def test_a_tokenizer_without_tokens(tmp_path: Path) -> None:
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json must have at least one token"):
        tokenizer_identity(tmp_path)


QUERIES = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda w: w.pop("model.norm.weight"), r"model\.norm\.weight is missing.*\[64\]"),
        (lambda w: w.pop(f"{QUERIES}.weight"), r"1.self_attn.q_proj.weight is missing.*\[64, 64\]"),
        (
            lambda w: w.update({f"{QUERIES}.weight": torch.zeros(32, 64)}),
            r"q_proj.weight must have the shape \[64, 64\], not \[32, 64\]",
        ),
        (
            lambda w: w.update({"model.norm.weight": torch.zeros(())}),
            r"norm.weight must have the shape \[64\], not \[\]",
        ),
        (
            lambda w: w.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}),
            "norm.weight must be F64, F32, F16, BF16, not I8",
        ),
        (lambda w: w.update({f"{QUERIES}.bias": torch.zeros(64)}), "q_proj.bias is not part"),
        (
            lambda w: w.update({"model.layers.2.input_layernorm.weight": torch.ones(64)}),
            r"layers\.2\.input_layernorm.weight is not part",
        ),
        (lambda w: w.update({"lm_head.weight": torch.zeros(128, 64)}), "lm_head.weight must equal"),
        (lambda w: w.update({"lm_head.weight": torch.zeros(1, 64)}), "lm_head.weight must have"),
    ],
)
def test_tensors_that_are_not_those_of_the_configuration(
    directory: Path, change: Callable[[dict[str, Tensor]], object], text: str
) -> None:
    edit_weights(directory / "model.safetensors", change)
    with pytest.raises(UnsupportedModel, match=text):
        load(directory)
    with pytest.raises(UnsupportedModel, match=text):
        check_weights(directory, read_model_config(directory))


@pytest.mark.parametrize(
    ("family", "part"), [("qwen2", "self_attn.k_proj.bias"), ("qwen3", "self_attn.q_norm.weight")]
)
def test_tensors_that_a_family_needs(tmp_path: Path, family: str, part: str) -> None:
    directory = make_tiny_model(tmp_path, family, kv_heads=4, head_dim=16)
    name = f"model.layers.1.{part}"
    edit_weights(directory / "model.safetensors", lambda weights: weights.pop(name))
    with pytest.raises(UnsupportedModel, match=rf"weight {name} is missing; its shape .*\[\d+\]"):
        load(directory)


def test_a_model_without_a_head_that_is_not_tied(directory: Path) -> None:
    edit(directory / "config.json", {"tie_word_embeddings": False})
    with pytest.raises(UnsupportedModel, match=r"lm_head\.weight is missing.*\[128, 64\]"):
        load(directory)


def test_tensors_that_say_nothing_new_are_left_out(directory: Path) -> None:
    def add(weights: dict[str, Tensor]) -> None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    edit_weights(directory / "model.safetensors", add)
    load(directory)


def test_weight_files_that_are_missing_or_broken(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UnsupportedModel, match=r"^model\.safetensors is not a safetensors file"):
        load(directory)
    file.unlink()
    with pytest.raises(UnsupportedModel, match=r"^model\.safetensors is missing"):
        load(directory)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], r"index\.json must hold a JSON object"),
        ({}, "weight_map must be an object of file names"),
        ({"weight_map": {"model.norm.weight": 3}}, "weight_map must be an object of file names"),
        ({"weight_map": {"model.norm.weight": "b.safetensors"}}, r"b\.safetensors is missing"),
        ({"weight_map": {"a": "model.safetensors", "b": "copy.safetensors"}}, "in two files"),
    ],
)
def test_an_index_that_does_not_fit_its_files(directory: Path, content: object, text: str) -> None:
    shutil.copy(directory / "model.safetensors", directory / "copy.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(UnsupportedModel, match=text):
        load(directory)


def test_weights_that_are_not_numbers(directory: Path) -> None:
    file = directory / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.0.mlp.down_proj.weight"][0, 0] = torch.nan
    save_file(weights, file)
    with pytest.raises(UnsupportedModel, match="not finite"):
        load(directory)
