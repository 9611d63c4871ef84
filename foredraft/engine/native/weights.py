"""Reads a Hugging Face directory into blocks, as kernels take them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from foredraft.engine.model_config import ModelConfig, UnsupportedModel, has_blocks
from foredraft.engine.native.block_file import BlockFile
from foredraft.engine.native.blocks import BLOCK, Blocks
from foredraft.engine.native.four_bits import four_bits
from foredraft.engine.output_ids import OutputIds
from foredraft.engine.weights import (
    EMBEDDING,
    HEAD,
    LAST_NORM,
    WeightFiles,
    laid_out,
    opened_weights,
)

_LANES = 8  # numbers of a head that are computed together
_PIECE = 4096  # rows that are rounded together, so that a large matrix is never copied whole
_LARGE = 2**20  # weights: to read fewer takes no time that matters
Held = TypeVar("Held")  # a matrix as the kernels hold it


@dataclass(frozen=True, slots=True)
class NativeLayer(Generic[Held]):
    """Weights of one layer; queries, keys and values are one matrix, and so are gate and up.

    In query and key heads numbers that turn together are side by side (`pair_up`).

    input_norm, post_norm: float32 [hidden], not folded into what they feed: it must stay as it is.
    qkv_bias: float32 [outputs], for families that have it.
    head_norms: float32 [heads + kv_heads, head_dim], of query heads, then of key heads.
    """

    input_norm: Tensor
    qkv: Held
    qkv_bias: Tensor | None
    head_norms: Tensor | None
    out: Held
    post_norm: Tensor
    gate_up: Held
    down: Held


@dataclass(frozen=True, slots=True)
class NativeWeights(Generic[Held]):
    """All of a model.

    embedding: a row per token. last_norm: float32 [hidden]. head: a row per logit.
    exact_head: where ``head`` is a rougher one, what the largest logits are computed by.
    """

    layers: tuple[NativeLayer[Held], ...]
    embedding: Blocks
    last_norm: Tensor
    head: Held
    exact_head: Blocks | None = None


def read_native(
    directory: Path,
    config: ModelConfig,
    make_linear: Callable[[Blocks], Held],
    output: OutputIds | None = None,
    *,
    fewer_bits: bool = False,
) -> NativeWeights[Held]:
    """Read a model, a matrix at a time.

    Blocks are those of the directory's file of blocks, if there is one, else the nearest of 8 bits.

    Args:
        make_linear: what becomes of each matrix.
        output: the rows that the head has, if not all.
        fewer_bits: large matrices of gates and ups get 4 bits instead of 8, and a large head 4
            besides, to find the largest logits by. That costs hardly any guesses.

    Raises:
        UnsupportedModel: the weights are not those of ``config``, or no blocks hold them, or the
            file of blocks is broken or does not hold them.
    """
    check_columns(config)
    with ExitStack() as stack:
        read = stack.enter_context(opened_weights(directory, config))
        blocks = BlockFile(directory, stack) if has_blocks(directory) else None
        make = _Maker(read, blocks, config, make_linear, fewer_bits)
        embedding = make.blocks(EMBEDDING)
        head = embedding if config.tied else make.blocks(HEAD)
        if output is not None:
            head = head.by_row(lambda part: part[output.ids])
        rough = make.fewer(head)
        return NativeWeights(
            layers=tuple(make.layer(f"model.layers.{i}") for i in range(config.layers)),
            embedding=embedding,
            last_norm=make.vector(LAST_NORM),
            head=make_linear(rough or head),
            exact_head=rough and head,
        )


def check_columns(config: ModelConfig) -> None:
    """Raises UnsupportedModel if inputs of linear layers, or heads, are not what kernels take."""
    inputs = {
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_attention_heads * head_dim": config.heads * config.head_dim,
    }
    wholes = {name: (count, BLOCK) for name, count in inputs.items()}
    for name, (count, whole) in (wholes | {"head_dim": (config.head_dim, _LANES)}).items():
        if count % whole:
            raise UnsupportedModel(
                f"config.json: {name} must be a multiple of {whole} with dtype int8, not {count}"
            )


@dataclass(frozen=True, slots=True)
class _Maker(Generic[Held]):
    """``file`` None: there are no blocks but the nearest."""

    read: WeightFiles
    file: BlockFile | None
    config: ModelConfig
    make_linear: Callable[[Blocks], Held]
    fewer_bits: bool

    def layer(self, prefix: str) -> NativeLayer[Held]:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        parts = [f"{attention}.{part}_proj" for part in "qkv"]
        bias = self.vector(*(f"{part}.bias" for part in parts)) if self.config.qkv_bias else None
        return NativeLayer(
            input_norm=self.vector(f"{prefix}.input_layernorm.weight"),
            qkv=self.linear(*(f"{part}.weight" for part in parts)),
            qkv_bias=bias,
            head_norms=self.head_norms(attention) if self.config.head_norms else None,
            out=self.linear(f"{attention}.o_proj.weight"),
            post_norm=self.vector(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=self.gates(f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
            down=self.linear(f"{mlp}.down_proj.weight"),
        )

    def linear(self, *names: str) -> Held:
        """The weights of these names, stacked."""
        return self.make_linear(self.stacked(*names))

    def gates(self, *names: str) -> Held:
        """`linear`, in fewer bits if that is wanted: other matrices lose more guesses by it."""
        blocks = self.stacked(*names)
        return self.make_linear(self.fewer(blocks) or blocks)

    def fewer(self, blocks: Blocks) -> Blocks | None:
        """4 bits instead of 8; None where that is not wanted, brings nothing or does not fit."""
        if not self.fewer_bits or blocks.bits == 4 or blocks.levels.numel() < _LARGE:
            return None
        starts = range(0, blocks.shape[0], _PIECE)
        parts = [four_bits(_rows(blocks, start).floats()) for start in starts]
        fitting = [part for part in parts if part is not None]
        return Blocks.stacked(fitting) if len(fitting) == len(parts) else None

    def stacked(self, *names: str) -> Blocks:
        return Blocks.stacked([self.laid_out(name) for name in names])

    def laid_out(self, name: str) -> Blocks:
        return self.blocks(name).by_row(partial(laid_out, name, head_dim=self.config.head_dim))

    def blocks(self, name: str) -> Blocks:
        weight = self.read(name)
        return Blocks.nearest(weight) if self.file is None else self.file.read(name, weight)

    def head_norms(self, attention: str) -> Tensor:
        queries, keys = (self.vector(f"{attention}.{part}_norm.weight") for part in "qk")
        config = self.config
        return torch.cat((queries.expand(config.heads, -1), keys.expand(config.kv_heads, -1)))

    def vector(self, *names: str) -> Tensor:
        """Vectors, one behind the other, laid out as the matrices beside them."""
        head_dim = self.config.head_dim
        return torch.cat([laid_out(name, self.read(name), head_dim).float() for name in names])


def _rows(blocks: Blocks, start: int) -> Blocks:
    return blocks.by_row(lambda part: part[start : start + _PIECE])
