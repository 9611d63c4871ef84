"""Directories that would be served as nonsense are refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import make_tiny_llama

from foredraft.config import EngineConfig
from foredraft.engine.model_config import UnsupportedModel
from foredraft.engine.runner import ModelRunner


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path)


def load(directory: Path) -> None:
    ModelRunner.load(EngineConfig(directory, device="cpu", kv_memory_mib=1))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("architectures", ["OtherForCausalLM"]),
        ("attention_bias", True),
        ("quantization_config", {"quant_method": "any"}),
        ("hidden_act", "gelu"),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 10_000.0}),
    ],
)
def test_options_we_do_not_run(directory: Path, option: str, value: object) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {option: value}))
    with pytest.raises(UnsupportedModel):
        load(directory)


def test_weights_that_are_not_numbers(directory: Path) -> None:
    file = directory / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.0.mlp.down_proj.weight"][0, 0] = torch.nan
    save_file(weights, file)
    with pytest.raises(UnsupportedModel, match="not finite"):
        load(directory)
