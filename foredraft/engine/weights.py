"""Reads the weights of a Hugging Face directory into a `Transformer`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foredraft.engine.linear import BiasedLinear, FixedLaunchLinear, Linear
from foredraft.engine.model_config import ModelConfig, UnsupportedModel, read_json_object
from foredraft.engine.output_ids import OutputIds
from foredraft.engine.precision import Precision
from foredraft.engine.rotary import Rotary, pair_up
from foredraft.engine.transformer import Layer, Transformer

_FLOATS = ("F64", "F32", "F16", "BF16")
EMBEDDING, HEAD, LAST_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


class WeightFiles:
    """The safetensors files of a directory, sharded or not, read one tensor at a time."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """Raises UnsupportedModel: a file is missing or broken, or two hold the same tensor."""
        self._homes: dict[str, Any] = {}
        for name in _file_names(directory):
            file = stack.enter_context(open_tensors(directory / name))
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
        if config.tied and HEAD in self._homes:
            self._check_tied_head(config)
            known.add(HEAD)
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
        self._check_tensor(HEAD, (config.vocab_rows, config.hidden))
        head, embedding = self(HEAD), self(EMBEDDING)
        if not torch.equal(head.to(embedding.dtype), embedding):
            raise UnsupportedModel(
                f"weight {HEAD} must equal {EMBEDDING}, since tie_word_embeddings is true"
            )


def check_weights(directory: Path, config: ModelConfig) -> None:
    """What `load_model` refuses by names and shapes, without loading anything.

    Raises:
        UnsupportedModel: as `WeightFiles`.
    """
    with opened_weights(directory, config):
        pass


@contextmanager
def opened_weights(directory: Path, config: ModelConfig) -> Iterator[WeightFiles]:
    """The files of a model, compared with ``config``, open while the context lasts.

    Raises:
        UnsupportedModel: as `WeightFiles`.
    """
    with ExitStack() as stack:
        files = WeightFiles(directory, stack)
        files.check(config)
        yield files


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors of a model, [outputs, inputs] for linear layers."""
    hidden, wide = config.hidden, config.intermediate
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield EMBEDDING, (config.vocab_rows, hidden)
    for number in range(config.layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
        if config.qkv_bias:
            yield f"{layer}.self_attn.q_proj.bias", (queries,)
            yield f"{layer}.self_attn.k_proj.bias", (keys,)
            yield f"{layer}.self_attn.v_proj.bias", (keys,)
        if config.head_norms:
            yield f"{layer}.self_attn.q_norm.weight", (config.head_dim,)
            yield f"{layer}.self_attn.k_norm.weight", (config.head_dim,)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (wide, hidden)
        yield f"{layer}.mlp.up_proj.weight", (wide, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, wide)
    yield LAST_NORM, (hidden,)
    if not config.tied:
        yield HEAD, (config.vocab_rows, hidden)


def load_model(
    directory: Path,
    config: ModelConfig,
    precision: Precision,
    device: torch.device,
    *,
    output: OutputIds | None = None,
    fixed_launch: bool = False,
) -> Transformer:
    """Load the model.

    ``output``: the rows that the head has, if not all.
    ``fixed_launch``: run linear layers in launches of one size (see `row_tile`).

    Raises:
        UnsupportedModel: the weights are not those of ``config``, or not those of a float type.
    """
    with opened_weights(directory, config) as read:
        make = _Maker(read, config, precision, device, fixed_launch)
        head = make.head_weight(EMBEDDING if config.tied else HEAD, output)
        return Transformer(
            config=config,
            embedding=read(EMBEDDING).to(device, precision.stored),
            layers=tuple(make.layer(f"model.layers.{i}") for i in range(config.layers)),
            head=make.held(head),
            rotary=Rotary(config, device),
            activation=precision.activation,
            rms_eps=torch.tensor(config.rms_eps, device=device),
        )


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes layers from the tensors of a checkpoint."""

    read: WeightFiles
    config: ModelConfig
    precision: Precision
    device: torch.device
    fixed_launch: bool

    def layer(self, prefix: str) -> Layer:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        parts = [f"{attention}.{part}_proj" for part in "qkv"]
        qkv = self.linear(
            *(f"{part}.weight" for part in parts), norm=f"{prefix}.input_layernorm.weight"
        )
        if self.config.qkv_bias:
            qkv = BiasedLinear(
                qkv, self._stacked(f"{part}.bias" for part in parts).to(self.precision.activation)
            )
        return Layer(
            qkv=qkv,
            out=self.linear(f"{attention}.o_proj.weight"),
            gate_up=self.linear(
                f"{mlp}.gate_proj.weight",
                f"{mlp}.up_proj.weight",
                norm=f"{prefix}.post_attention_layernorm.weight",
            ),
            down=self.linear(f"{mlp}.down_proj.weight"),
            head_norms=self._head_norms(attention) if self.config.head_norms else None,
        )

    def head_weight(self, name: str, output: OutputIds | None) -> Tensor:
        """The rows of ``output`` alone, if there is one, with the last norm."""
        weight = self._stacked([name])
        return self._normed(weight if output is None else weight[output.ids], LAST_NORM)

    def linear(self, *names: str, norm: str | None = None) -> Linear:
        """Stacked weights, times the weight of the norm that feeds them."""
        stacked = self._stacked(names)
        return self.held(stacked if norm is None else self._normed(stacked, norm))

    def held(self, weight: Tensor) -> Linear:
        """A linear layer of ``weight`` in the model's precision."""
        made = self.precision.make_linear(weight)
        return FixedLaunchLinear(made) if self.fixed_launch else made

    def _normed(self, weight: Tensor, norm: str) -> Tensor:
        # Not rounded to the checkpoint's type: it would be another model in a finer precision.
        return weight.float() * self.read(norm).to(self.device).float()

    def _head_norms(self, attention: str) -> Tensor:
        """One row per query head, then one per key head."""
        heads, kv_heads = self.config.heads, self.config.kv_heads
        names = [f"{attention}.q_norm.weight"] * heads + [f"{attention}.k_norm.weight"] * kv_heads
        stacked = self._stacked(names).view(heads + kv_heads, -1)
        return stacked.to(self.precision.activation)

    def _stacked(self, names: Iterable[str]) -> Tensor:
        head_dim = self.config.head_dim
        return torch.cat([laid_out(name, self.read(name), head_dim) for name in names]).to(
            self.device
        )


def laid_out(name: str, tensor: Tensor, head_dim: int) -> Tensor:
    """The tensor of this name as the engine holds it: what turns together is side by side."""
    owner, _, _ = name.rpartition(".")
    turned = owner.endswith(("q_proj", "k_proj", "q_norm", "k_norm"))
    return pair_up(tensor, head_dim) if turned else tensor


def _file_names(directory: Path) -> list[str]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return ["model.safetensors"]
    homes = read_json_object(index).get("weight_map")
    if not isinstance(homes, dict) or not all(isinstance(home, str) for home in homes.values()):
        raise UnsupportedModel(f"{index.name}: weight_map must be an object of file names")
    return sorted(set(homes.values()))


def open_tensors(file: Path) -> Any:
    """A safetensors file, open. Raises UnsupportedModel: it is missing, or is no such file."""
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{file.name} is missing from the model directory") from error
    except (OSError, SafetensorError) as error:
        raise UnsupportedModel(f"{file.name} is not a safetensors file: {error}") from error
