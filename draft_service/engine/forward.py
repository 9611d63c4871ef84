"""The forward pass of a draft: as the target's, but for rounding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from draft_service.engine.attention import Attention
from foredraft.engine.rotary import rotate_
from foredraft.engine.transformer import Layer, Transformer


class DraftForward:
    """Runs rows through all layers of ``model``; it allocates nothing that a graph could not."""

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._config = model.config
        # Rotary turns scale the queries, too: one product of the pass instead of one per layer.
        heads, kv_heads = model.config.heads, model.config.kv_heads
        scales = [model.config.head_dim**-0.5] * heads + [1.0] * kv_heads
        self._scales = torch.tensor(scales, device=model.embedding.device)[:, None]

    def logits(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """For all rows, in the model's activation dtype: [rows, vocab]."""
        return self.head(self.hidden(tokens, positions, attention))

    def head(self, hidden: Tensor) -> Tensor:
        return self._model.head(hidden)

    def hidden(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """What the head takes, [rows, hidden]; writes all entries."""
        x, turns = self._begin(tokens, positions)
        for number, layer in enumerate(self._model.layers):
            self._run(layer, number, x, turns, attention)
        return self._normed(x)

    def write(self, tokens: Tensor, positions: Tensor, attention: Attention) -> None:
        """Write all entries and nothing else: the last layer ends there."""
        x, turns = self._begin(tokens, positions)
        *layers, last = self._model.layers
        for number, layer in enumerate(layers):
            self._run(layer, number, x, turns, attention)
        _, entries = self._project(last, x, turns)
        attention.write(len(layers), entries)

    def _begin(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        x = self._model.embedding.index_select(0, tokens).to(self._model.activation)
        return x, self._model.rotary.at(positions) * self._scales

    def _run(
        self, layer: Layer, number: int, x: Tensor, turns: Tensor, attention: Attention
    ) -> None:
        """One layer, in place."""
        q, entries = self._project(layer, x, turns)
        attention.write(number, entries)
        x += layer.out(attention(number, q))
        gate, up = layer.gate_up(self._normed(x)).chunk(2, dim=-1)
        x += layer.down(functional.silu(gate).mul_(up))

    def _project(self, layer: Layer, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        """q [rows, heads, head_dim]; keys and values [rows, 2 * kv_heads, head_dim]."""
        heads, kv_heads = self._config.heads, self._config.kv_heads
        qkv = layer.qkv(self._normed(x)).view(len(x), -1, self._config.head_dim)
        turned = qkv[:, : heads + kv_heads]
        if layer.head_norms is not None:
            turned.copy_(self._normed(turned)).mul_(layer.head_norms)
        rotate_(turned, turns)
        return turned[:, :heads], qkv[:, heads:]

    def _normed(self, x: Tensor) -> Tensor:
        """x / rms(x) over the last dimension (Zhang, Sennrich 2019)."""
        eps = self._config.rms_eps
        if x.device.type == "cuda":  # one kernel there, and slower than its parts on a CPU
            return functional.rms_norm(x, x.shape[-1:], eps=eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        square = torch.addcmul(self._model.rms_eps, length, length, value=1 / x.shape[-1])
        return x * square.rsqrt_().to(x.dtype)
