"""The forward pass over the rows of a step, made of kernels for x86-64."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.kv import PagedKV
from foredraft.engine.model_config import ModelConfig
from foredraft.engine.native.attending import Attending
from foredraft.engine.native.packed import Packed
from foredraft.engine.native.plan import NativePlan
from foredraft.engine.native.products import Product, Scratch
from foredraft.engine.native.weights import NativeWeights
from foredraft.engine.rotary import Rotary
from kernels.cpu.team import Team


class NativeTransformer:
    """One model; a row's result is the same in any company. All activations are float32."""

    def __init__(self, config: ModelConfig, weights: NativeWeights[Packed], team: Team) -> None:
        self._config = config
        self._weights = weights
        self._team = team
        self._turns = _turn_table(Rotary(config, torch.device("cpu")).table)
        self._widest = max(config.hidden, config.intermediate, config.heads * config.head_dim)

    def hidden(self, tokens: Tensor, plan: NativePlan, kv: PagedKV) -> Tensor:
        """Run rows through all layers and write their KV: float32 [rows, hidden].

        Args:
            tokens: int64 [rows].
        """
        x = self._weights.embedding.by_row(lambda part: part[tokens]).floats()
        first, *_ = self._weights.layers
        qkv, gate_up = (torch.empty(len(x), w.outputs) for w in (first.qkv, first.gate_up))
        attending = Attending(self._config, plan, kv, self._turns_at(plan), qkv, self._team)
        scratch, eps = Scratch(self._team, len(x), self._widest), self._config.rms_eps
        to_qkv = Product("normed", x, qkv, scratch, add=False, rms_eps=eps)
        from_heads = Product("plain", attending.out, x, scratch, add=True)
        to_gates = Product("normed", x, gate_up, scratch, add=False, rms_eps=eps)
        from_gates = Product("gated", gate_up, x, scratch, add=True)
        for number, layer in enumerate(self._weights.layers):
            to_qkv.run(layer.qkv, layer.input_norm.data_ptr())
            attending.run(number, layer)
            from_heads.run(layer.out)
            to_gates.run(layer.gate_up, layer.post_norm.data_ptr())
            from_gates.run(layer.down)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, outputs of the head], of which the vocabulary are the first."""
        head, norm = self._weights.head, self._weights.last_norm
        logits = torch.empty(len(hidden), head.outputs)
        scratch = Scratch(self._team, len(hidden), head.columns)
        eps = self._config.rms_eps
        product = Product("normed", hidden, logits, scratch, add=False, rms_eps=eps)
        product.run(head, norm.data_ptr())
        return logits

    def _turns_at(self, plan: NativePlan) -> Tensor:
        return self._turns[torch.from_numpy(plan.positions)]


def _turn_table(table: Tensor) -> Tensor:
    """Cosines and sines [context, head_dim / 2, 2] as `rope_kv_write` takes them."""
    cosines, sines = (part.repeat_interleave(2, dim=-1) for part in table.unbind(-1))
    sines[:, ::2].neg_()
    return torch.stack((cosines, sines), dim=1)
