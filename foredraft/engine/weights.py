"""Reads the weights of a Hugging Face Llama directory into a `Llama`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foredraft.engine.linear import FixedLaunchLinear, Linear
from foredraft.engine.llama import Layer, Llama
from foredraft.engine.model_config import ModelConfig, UnsupportedModel, read_json_object
from foredraft.engine.precision import Precision
from foredraft.engine.rotary import Rotary, pair_up

_FLOATS = ("F64", "F32", "F16", "BF16")
_EMBEDDING, _HEAD, _LAST_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


class WeightFiles:
    """The safetensors files of a directory, sharded or not, read one tensor at a time."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """Raises UnsupportedModel: a file is missing or broken, or two hold the same tensor."""
        self._homes: dict[str, Any] = {}
        for name in _file_names(directory):
            file = stack.enter_context(_open(directory / name))
            for key in file.keys():  # noqa: SIM118
                if key in self._homes:
                    raise UnsupportedModel(f"weight {key} stands in two files, one is {name}")
                self._homes[key] = file

    def __call__(self, name: str) -> Tensor:
        tensor: Tensor = self._homes[name].get_tensor(name)
        return tensor

    def check(self, config: ModelConfig) -> None:
        """Compare names, shapes and dtypes, which files tell without reading the tensors.

        Raises:
            UnsupportedModel: a tensor is missing or has another shape than config.json says, or
                there is one that the model has no place for: left out, it would be another model.
        """
        known = set()
        for name, shape in expected_shapes(config):
            self._check_tensor(name, shape)
            known.add(name)
        if config.tied and _HEAD in self._homes:
            self._check_tied_head(config)
            known.add(_HEAD)
        for name in sorted(self._homes.keys() - known):
            # Tables that follow from config.json; early Llama checkpoints have them.
            if not name.endswith("rotary_emb.inv_freq"):
                raise UnsupportedModel(f"weight {name} is not part of the model of config.json")

    def _check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._homes:
            raise UnsupportedModel(f"weight {name} is missing; its shape must be {list(shape)}")
        tensor = self._homes[name].get_slice(name)
        if tuple(tensor.get_shape()) != shape:
            found = tensor.get_shape()
            raise UnsupportedModel(f"weight {name} must have the shape {list(shape)}, not {found}")
        if tensor.get_dtype() not in _FLOATS:
            allowed = ", ".join(_FLOATS)
            raise UnsupportedModel(f"weight {name} must be {allowed}, not {tensor.get_dtype()}")

    def _check_tied_head(self, config: ModelConfig) -> None:
        """A copy of the embedding is common; anything else contradicts config.json."""
        self._check_tensor(_HEAD, (config.vocab_rows, config.hidden))
        head, embedding = self(_HEAD), self(_EMBEDDING)
        if not torch.equal(head.to(embedding.dtype), embedding):
            raise UnsupportedModel(
                f"weight {_HEAD} must equal {_EMBEDDING}, since tie_word_embeddings is true"
            )


def check_weights(directory: Path, config: ModelConfig) -> None:
    """What `load_llama` refuses by names and shapes, without loading anything.

    Raises:
        UnsupportedModel: as `WeightFiles`.
    """
    with ExitStack() as stack:
        WeightFiles(directory, stack).check(config)


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors of a model, [outputs, inputs] for linear layers."""
    hidden, wide = config.hidden, config.intermediate
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield _EMBEDDING, (config.vocab_rows, hidden)
    for number in range(config.layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (wide, hidden)
        yield f"{layer}.mlp.up_proj.weight", (wide, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, wide)
    yield _LAST_NORM, (hidden,)
    if not config.tied:
        yield _HEAD, (config.vocab_rows, hidden)


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
        UnsupportedModel: the weights are not those of ``config``, or not those of a float type.
    """
    with ExitStack() as stack:
        read = WeightFiles(directory, stack)
        read.check(config)

        def linear(*names: str, norm: str | None = None) -> Linear:
            """Stacked weights, times the weight of the norm that feeds them."""
            stacked = torch.cat([_laid_out(name, read(name), config) for name in names]).to(device)
            if norm is not None:
                stacked = (stacked.float() * read(norm).to(device).float()).to(stacked.dtype)
            made = precision.make_linear(stacked)
            return FixedLaunchLinear(made) if fixed_launch else made

        return Llama(
            config=config,
            embedding=read(_EMBEDDING).to(device, precision.stored),
            layers=tuple(_layer(f"model.layers.{i}", linear) for i in range(config.layers)),
            head=linear(_EMBEDDING if config.tied else _HEAD, norm=_LAST_NORM),
            rotary=Rotary(config, device),
            activation=precision.activation,
            rms_eps=torch.tensor(config.rms_eps, device=device),
        )


def _laid_out(name: str, weight: Tensor, config: ModelConfig) -> Tensor:
    """A weight as the engine holds it."""
    turned = name.endswith(("q_proj.weight", "k_proj.weight"))
    return pair_up(weight, config.head_dim) if turned else weight


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
    if not index.exists():
        return ["model.safetensors"]
    homes = read_json_object(index).get("weight_map")
    if not isinstance(homes, dict) or not all(isinstance(home, str) for home in homes.values()):
        raise UnsupportedModel(f"{index.name}: weight_map must be an object of file names")
    return sorted(set(homes.values()))


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{file.name} is missing from the model directory") from error
    except (OSError, SafetensorError) as error:
        raise UnsupportedModel(f"{file.name} is not a safetensors file: {error}") from error
