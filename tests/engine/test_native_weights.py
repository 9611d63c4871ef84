"""A directory as kernels over blocks take it: the model's own blocks, or the nearest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import make_tiny_llama, make_tiny_model
from torch import Tensor

from foredraft.engine.model_config import BLOCK_FILE, UnsupportedModel, read_model_config
from foredraft.engine.native.blocks import Blocks
from foredraft.engine.native.weights import NativeWeights, read_native
from foredraft.engine.rotary import pair_up

WEIGHTS = "model.safetensors"
Tensors = dict[str, Tensor]


def read(directory: Path) -> NativeWeights[Blocks]:
    return read_native(directory, read_model_config(directory), lambda blocks: blocks)


def write_blocks(directory: Path) -> Path:
    """The file of blocks of a model whose weights are rounded for that."""
    weights, blocks = load_file(directory / WEIGHTS), {}
    for name, weight in weights.items():
        if weight.dim() == 2:
            made = Blocks.nearest(weight)
            weights[name] = made.floats()
            blocks |= {f"{name}.levels": made.levels, f"{name}.scales": made.scales}
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    save_file(blocks, directory / BLOCK_FILE)
    return directory


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_without_a_file_they_are_the_nearest(tmp_path: Path, family: str) -> None:
    directory = make_tiny_model(tmp_path, family, tie=False, norm_spread=0.2, head_dim=16)
    tensors = load_file(directory / WEIGHTS)
    made, config = read(directory), read_model_config(directory)
    layer, prefix = made.layers[1], "model.layers.1.self_attn"

    def stacked(kind: str) -> Tensor:
        q, k, v = (tensors[f"{prefix}.{part}_proj.{kind}"] for part in "qkv")
        return torch.cat((pair_up(q, config.head_dim), pair_up(k, config.head_dim), v))

    assert torch.equal(layer.qkv.levels, Blocks.nearest(stacked("weight")).levels)
    assert torch.equal(layer.input_norm, tensors["model.layers.1.input_layernorm.weight"])
    assert torch.equal(made.last_norm, tensors["model.norm.weight"])
    assert not torch.equal(made.head.levels, made.embedding.levels)
    if family == "qwen2":
        assert layer.qkv_bias is not None and torch.equal(layer.qkv_bias, stacked("bias"))
    else:
        norms = [pair_up(tensors[f"{prefix}.{part}_norm.weight"], 16) for part in "qk"]
        assert layer.head_norms is not None
        assert torch.equal(layer.head_norms, torch.stack([norms[0]] * 4 + [norms[1]] * 2))


def test_the_file_of_the_directory_is_taken(tmp_path: Path) -> None:
    directory = write_blocks(make_tiny_llama(tmp_path))
    wanted = load_file(directory / BLOCK_FILE)["model.layers.0.mlp.down_proj.weight.levels"]
    assert torch.equal(read(directory).layers[0].down.levels, wanted)


def lacking(blocks: Tensors) -> None:
    del blocks["model.layers.1.mlp.up_proj.weight.scales"]


def wider(blocks: Tensors) -> None:
    blocks["model.layers.1.mlp.up_proj.weight.scales"] = torch.ones(128, 3).half()


def trained(blocks: Tensors) -> None:
    blocks["model.layers.1.mlp.up_proj.weight.levels"][5, 7] += 1


@pytest.mark.parametrize("change", [lacking, wider, trained])
def test_a_file_of_other_weights_is_refused(
    tmp_path: Path, change: Callable[[Tensors], None]
) -> None:
    directory = write_blocks(make_tiny_llama(tmp_path))
    blocks = load_file(directory / BLOCK_FILE)
    change(blocks)
    save_file(blocks, directory / BLOCK_FILE)
    with pytest.raises(UnsupportedModel, match=r"^blocks\.safetensors .*1\.mlp\.up_.*: delete it$"):
        read(directory)


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path)
    (directory / BLOCK_FILE).write_bytes(b"no tensors")
    with pytest.raises(UnsupportedModel, match=r"^blocks\.safetensors is not a safetensors file"):
        read(directory)


def test_columns_must_be_whole_blocks(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path, hidden=48)
    with pytest.raises(UnsupportedModel, match="hidden_size must be a multiple of 32 with dtype"):
        read(directory)
