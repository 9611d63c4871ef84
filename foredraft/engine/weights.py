"""Reads the weights of a Hugging Face Llama directory into a `Llama`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from foredraft.engine.linear import FixedLaunchLinear, Linear
from foredraft.engine.llama import Layer, Llama
from foredraft.engine.model_config import ModelConfig, UnsupportedModel
from foredraft.engine.precision import Precision
from foredraft.engine.rotary import Rotary


class WeightFiles:
    """The safetensors files of a directory, sharded or not, read one tensor at a time."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._files = {
            name: stack.enter_context(safe_open(directory / name, framework="pt"))
            for name in _file_names(directory)
        }
        self._homes = {key: file for file in self._files.values() for key in file.keys()}  # noqa: SIM118

    def __call__(self, name: str) -> Tensor:
        if name not in self._homes:
            raise UnsupportedModel(f"weight {name} is missing")
        tensor: Tensor = self._homes[name].get_tensor(name)
        return tensor


def load_llama(
    directory: Path,
    config: ModelConfig,
    precision: Precision,
    device: torch.device,
    *,
    fixed_launch: bool = False,
) -> Llama:
    """Load the model.

    ``fixed_launch``: run linear layers in launches of one size (see `row_tile`).

    Raises:
        UnsupportedModel: a weight is missing.
    """
    with ExitStack() as stack:
        read = WeightFiles(directory, stack)

        def linear(*names: str, norm: str | None = None) -> Linear:
            """Stacked weights, times the weight of the norm that feeds them."""
            stacked = torch.cat([read(name) for name in names]).to(device)
            if norm is not None:
                stacked = (stacked.float() * read(norm).to(device).float()).to(stacked.dtype)
            made = precision.make_linear(stacked)
            return FixedLaunchLinear(made) if fixed_launch else made

        embedding = "model.embed_tokens.weight"
        return Llama(
            config=config,
            embedding=read(embedding).to(device, precision.stored),
            layers=tuple(_layer(f"model.layers.{i}", linear) for i in range(config.layers)),
            head=linear(embedding if config.tied else "lm_head.weight", norm="model.norm.weight"),
            rotary=Rotary(config, device),
            activation=precision.activation,
            rms_eps=torch.tensor(config.rms_eps, device=device),
        )


def _layer(prefix: str, linear: Callable[..., Linear]) -> Layer:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    return Layer(
        qkv=linear(
            *(f"{attention}.{part}_proj.weight" for part in "qkv"),
            norm=f"{prefix}.input_layernorm.weight",
        ),
        out=linear(f"{attention}.o_proj.weight"),
        gate_up=linear(
            f"{mlp}.gate_proj.weight",
            f"{mlp}.up_proj.weight",
            norm=f"{prefix}.post_attention_layernorm.weight",
        ),
        down=linear(f"{mlp}.down_proj.weight"),
    )


def _file_names(directory: Path) -> list[str]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map: Mapping[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return sorted(set(weight_map.values()))
    if not (directory / "model.safetensors").exists():
        raise UnsupportedModel("model.safetensors is missing from the model directory")
    return ["model.safetensors"]
