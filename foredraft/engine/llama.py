"""Llama's forward pass over the rows of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from foredraft.engine.attention import tile_attention
from foredraft.engine.attention_plan import AttentionPlan
from foredraft.engine.kv import PagedKV
from foredraft.engine.linear import Linear
from foredraft.engine.model_config import ModelConfig
from foredraft.engine.rotary import Rotary, rotate
from foredraft.engine.row_tile import RowTile


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one block; ``qkv`` and ``gate_up`` are the stacked projections."""

    attention_norm: Tensor
    qkv: Linear
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Tiles:
    """Row tiles of the two kinds of products."""

    linear: RowTile
    attention: RowTile


@dataclass(frozen=True, slots=True)
class Llama:
    """All weights of the model; ``head`` maps hidden rows to logits."""

    config: ModelConfig
    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    rotary: Rotary
    activation: torch.dtype

    def __call__(self, tokens: Tensor, plan: AttentionPlan, kv: PagedKV, tiles: Tiles) -> Tensor:
        """Run rows through all layers and write their KV.

        Args:
            tokens: [rows].

        Returns:
            Normed hidden state [padded rows, hidden]; rows past ``plan.rows`` are padding.
        """
        x = self.embedding.index_select(0, tokens).to(self.activation)
        x = _pad_rows(x, tiles.linear.pad(plan.rows))
        turn = self.rotary.at(plan.positions, self.activation)
        for number, layer in enumerate(self.layers):
            q, entries = self._project(layer, x, turn)
            kv.token_rows[number].index_copy_(0, plan.write, entries)
            attended = tile_attention(
                q, kv.token_rows[number], kv.block_rows[number], plan, tiles.attention
            )
            x = x + layer.out(_pad_rows(attended, x.shape[0]))
            x = x + self._mlp(layer, x)
        return self._normed(x, self.norm)

    def _project(
        self, layer: Layer, x: Tensor, turn: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Scaled q [rows, kv_heads, group, head_dim]; keys and values [rows * planes, head_dim]."""
        shape = self.config
        rows = turn[0].shape[0]
        qkv = layer.qkv(self._normed(x, layer.attention_norm))
        qkv = qkv[:rows].unflatten(-1, (-1, shape.head_dim))
        turned = rotate(qkv[:, : shape.heads + shape.kv_heads], *turn)
        q = turned[:, : shape.heads].unflatten(1, (shape.kv_heads, shape.group))
        entries = torch.cat((turned[:, shape.heads :], qkv[:, shape.heads + shape.kv_heads :]), 1)
        return q * shape.head_dim**-0.5, entries.flatten(0, 1)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down(functional.silu(gate) * up)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.config.rms_eps)


def _pad_rows(x: Tensor, rows: int) -> Tensor:
    return x if x.shape[0] == rows else functional.pad(x, (0, 0, 0, rows - x.shape[0]))
