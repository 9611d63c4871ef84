"""A model's weights in E4M3, made layer by layer from any reader of tensors.

Linear layers have one scale per output channel; queries, keys and values are one matrix, and so are
gate and up. Embedding, norms and head stay in bfloat16 or float32: they are a small part of what a
step reads, and the head's rounding goes straight into the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.engine.fp8.operations import Matrix, Operations
from foredraft.engine.model_config import ModelConfig, UnsupportedModel
from foredraft.engine.rotary import Rotary
from foredraft.engine.weights import laid_out
from kernels.rope_kv_write import HeadNorms

Read = Callable[[str], Tensor]  # a tensor by its name in a Hugging Face directory


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one block.

    qkv_bias: float32 [outputs], for families that have it.
    attention_norm, mlp_norm: float32 [hidden], of the norm before each half.
    head_norms: of query heads, then of key heads, for families that have them.
    """

    qkv: Matrix
    out: Matrix
    gate_up: Matrix
    down: Matrix
    attention_norm: Tensor
    mlp_norm: Tensor
    qkv_bias: Tensor | None = None
    head_norms: HeadNorms | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """All of a model.

    embedding, head: bfloat16 [vocabulary's rows, hidden]; the head's are those of real tokens.
    last_norm: float32 [hidden].
    turns: float32 [context, head_dim / 2, 2], cosine and sine of every position's angles.
    """

    config: ModelConfig
    embedding: Tensor
    layers: tuple[Layer, ...]
    last_norm: Tensor
    head: Tensor
    turns: Tensor


def quantise(
    read: Read, config: ModelConfig, vocabulary: int, device: torch.device, operations: Operations
) -> Weights:
    """Read and quantise a model; beside it, a layer at a time is held as it is read.

    Args:
        vocabulary: real tokens: rows of the head behind them are left out.

    Raises:
        UnsupportedModel: a weight is not finite.
    """
    make = _Maker(read, config, device, operations)
    embedding = make.plain("model.embed_tokens.weight").bfloat16().contiguous()
    head = embedding if config.tied else make.plain("lm_head.weight").bfloat16()
    return Weights(
        config=config,
        embedding=embedding,
        layers=tuple(make.layer(f"model.layers.{number}") for number in range(config.layers)),
        last_norm=make.plain("model.norm.weight").float(),
        head=head[:vocabulary],
        turns=Rotary(config, device).table,
    )


@dataclass(frozen=True, slots=True)
class _Maker:
    read: Read
    config: ModelConfig
    device: torch.device
    operations: Operations

    def layer(self, prefix: str) -> Layer:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        parts = [f"{attention}.{part}_proj" for part in "qkv"]
        bias = [f"{part}.bias" for part in parts] if self.config.qkv_bias else []
        return Layer(
            qkv=self.matrix([f"{part}.weight" for part in parts]),
            out=self.matrix([f"{attention}.o_proj.weight"]),
            gate_up=self.matrix([f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"]),
            down=self.matrix([f"{mlp}.down_proj.weight"]),
            attention_norm=self.plain(f"{prefix}.input_layernorm.weight").float(),
            mlp_norm=self.plain(f"{prefix}.post_attention_layernorm.weight").float(),
            qkv_bias=torch.cat([self.laid_out(name) for name in bias]).float() if bias else None,
            head_norms=self.head_norms(attention) if self.config.head_norms else None,
        )

    def matrix(self, names: Sequence[str]) -> Matrix:
        """The weights of these names, stacked."""
        weight = torch.cat([self.laid_out(name) for name in names])
        if weight.dtype == torch.float64:
            weight = weight.float()
        made = self.operations.quantize_weight(weight)
        if not made.scales.isfinite().all():
            raise UnsupportedModel(f"weight {names[0]} or one beside it is not finite")
        return made

    def head_norms(self, attention: str) -> HeadNorms:
        queries, keys = (self.laid_out(f"{attention}.{part}_norm.weight") for part in "qk")
        heads, kv_heads = self.config.heads, self.config.kv_heads
        stacked = torch.cat((queries.expand(heads, -1), keys.expand(kv_heads, -1)))
        return HeadNorms(stacked.float().contiguous(), self.config.rms_eps)

    def laid_out(self, name: str) -> Tensor:
        """A tensor whose query and key heads have their pairs side by side."""
        return laid_out(name, self.plain(name), self.config.head_dim)

    def plain(self, name: str) -> Tensor:
        return self.read(name).to(self.device)
