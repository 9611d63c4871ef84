"""The forward pass over the rows of a step, for all families."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from foredraft.engine.attention import StepAttention
from foredraft.engine.attention_plan import StepPlan, Summation
from foredraft.engine.kv import PagedKV
from foredraft.engine.linear import Linear
from foredraft.engine.model_config import ModelConfig
from foredraft.engine.rotary import Rotary, rotate_
from foredraft.engine.row_tile import RowTile


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one block; ``qkv`` and ``gate_up`` are stacked and hold the norm before them.

    head_norms: weights of the norms of query and key heads, for families that have them:
        [heads + kv_heads, head_dim].
    """

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    head_norms: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Tiles:
    """Row tiles of the two kinds of products, and how attention's second one sums."""

    linear: RowTile
    attention: RowTile
    summation: Summation


@dataclass(frozen=True, slots=True)
class Transformer:
    """All weights of the model; ``head`` maps hidden rows to logits and holds the last norm."""

    config: ModelConfig
    embedding: Tensor
    layers: tuple[Layer, ...]
    head: Linear
    rotary: Rotary
    activation: torch.dtype
    rms_eps: Tensor  # one number

    def __call__(self, tokens: Tensor, plan: StepPlan, kv: PagedKV, tiles: Tiles) -> Tensor:
        """Run rows through all layers and write their KV.

        Args:
            tokens: [rows].

        Returns:
            Hidden state as ``head`` takes it, [padded rows, hidden]; rows past ``plan.rows`` are
            padding.
        """
        x = self.embedding.index_select(0, tokens).to(self.activation)
        x = functional.pad(x, (0, 0, 0, tiles.linear.pad(plan.rows) - plan.rows))
        turns = self.rotary.at(plan.positions)
        attend = StepAttention(
            plan, kv, self.config, x.shape[0], tiles.attention, tiles.summation, x
        )
        for number, layer in enumerate(self.layers):
            q, entries = self._project(layer, x, turns)
            kv.token_rows[number].index_copy_(0, plan.write, entries)
            x = x.add_(layer.out(attend(q, number)))
            x = x.add_(self._mlp(layer, x))
        return self._normed(x)

    def _project(self, layer: Layer, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        """q [rows, kv_heads, group, head_dim]; keys and values [rows * planes, head_dim]."""
        heads, kv_heads = self.config.heads, self.config.kv_heads
        rows = len(turns)
        qkv = layer.qkv(self._normed(x))[:rows].view(rows, -1, self.config.head_dim)
        turned = qkv[:, : heads + kv_heads]
        if layer.head_norms is not None:
            # All heads lie in one piece, queries and keys do not: so any rows are reduced alike.
            turned.mul_(self._inverse_rms(qkv)[:, : heads + kv_heads]).mul_(layer.head_norms)
        rotate_(turned, turns)
        q = turned[:, :heads].view(rows, kv_heads, -1, self.config.head_dim)
        return q, qkv[:, heads:].reshape(-1, self.config.head_dim)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        both = layer.gate_up(self._normed(x))
        width = self.config.intermediate
        return layer.down(functional.silu(both[:, :width]).mul_(both[:, width:]))

    def _normed(self, x: Tensor) -> Tensor:
        """x / rms(x) (Zhang, Sennrich 2019); the norm's weight is part of the next layer."""
        return x * self._inverse_rms(x)

    def _inverse_rms(self, x: Tensor) -> Tensor:
        """Over the last dimension, which stays with size 1."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        square = torch.addcmul(self.rms_eps, length, length, value=1 / x.shape[-1])
        return square.rsqrt_().to(x.dtype)
