"""The forward pass in FP8 over the rows of a step, or of a chunk of a prompt.

The residual stream is bfloat16. What a linear layer takes is quantised per token; what it gives is
bfloat16, the stream added before it is rounded. Every operation looks at one row, or is one whose
rows keep their bits in any company.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from foredraft.engine.fp8.inputs import Bounds, Inputs
from foredraft.engine.fp8.operations import Operations
from foredraft.engine.fp8.weights import Layer, Weights
from kernels.kv_layout import KVLayer, KVPool


class Model:
    """Weights, the KV that they fill, and what computes with both."""

    def __init__(self, weights: Weights, memory: KVPool, operations: Operations) -> None:
        self.weights = weights
        self.memory = memory
        self.operations = operations

    def first_layer(self) -> Model:
        """The same with one layer only: it launches all kernels that there are."""
        weights = replace(self.weights, layers=self.weights.layers[:1])
        return Model(weights, self.memory, self.operations)

    def step(self, inputs: Inputs, bounds: Bounds) -> Tensor:
        """Run a step's rows and write their KV: logits, float32 [rows, real vocabulary]."""
        x = self._embedded(inputs)
        for number, layer in enumerate(self.weights.layers):
            x = self._decode(layer, self.memory.layer(number), x, inputs, bounds)
        return self._logits(x)

    def chunk(self, inputs: Inputs) -> Tensor:
        """Run a chunk's rows, padding included: the residual stream behind the last layer."""
        x = self._embedded(inputs)
        behind = None  # what the layer before adds to x: the norm behind it does so
        for number, layer in enumerate(self.weights.layers):
            x, behind = self._prefill(layer, self.memory.layer(number), x, behind, inputs)
        return x if behind is None else x.add_(behind)

    def chunk_logits(self, x: Tensor) -> Tensor:
        """Logits of some rows of what `chunk` returned."""
        return self._logits(x)

    def _decode(
        self, layer: Layer, kv: KVLayer, x: Tensor, inputs: Inputs, bounds: Bounds
    ) -> Tensor:
        run, eps = self.operations, self.weights.config.rms_eps
        tokens = run.norm_quantize(x, layer.attention_norm, eps)
        q = self._written(layer, kv, run.product(tokens, layer.qkv, layer.qkv_bias), inputs)
        attended = run.quantize(run.attend(q, kv, inputs, bounds))
        x = run.product(attended, layer.out, residual=x)
        both = run.product(run.norm_quantize(x, layer.mlp_norm, eps), layer.gate_up)
        return run.product(run.silu_mul_quantize(both), layer.down, residual=x)

    def _prefill(
        self, layer: Layer, kv: KVLayer, x: Tensor, behind: Tensor | None, inputs: Inputs
    ) -> tuple[Tensor, Tensor]:
        """The library's product of many rows adds no residual: the last one's is returned apart."""
        run, eps = self.operations, self.weights.config.rms_eps
        if behind is None:
            tokens = run.norm_quantize(x, layer.attention_norm, eps)
        else:
            tokens, x = run.add_norm_quantize(behind, x, layer.attention_norm, eps)
        q = self._written(layer, kv, run.chunk_product(tokens, layer.qkv, layer.qkv_bias), inputs)
        attended = run.quantize(run.chunk_attend(q, kv, inputs))
        behind = run.chunk_product(attended, layer.out)
        tokens, x = run.add_norm_quantize(behind, x, layer.mlp_norm, eps)
        both = run.chunk_product(tokens, layer.gate_up)
        return x, run.chunk_product(run.silu_mul_quantize(both), layer.down)

    def _written(self, layer: Layer, kv: KVLayer, qkv: Tensor, inputs: Inputs) -> Tensor:
        """Queries, once keys and values are where they belong."""
        return self.operations.write(qkv, self.weights.turns, inputs, kv, layer.head_norms)

    def _embedded(self, inputs: Inputs) -> Tensor:
        return self.operations.embed(self.weights.embedding, inputs.rows.token)

    def _logits(self, x: Tensor) -> Tensor:
        eps = self.weights.config.rms_eps
        return self.operations.logits(
            self.operations.norm(x, self.weights.last_norm, eps), self.weights.head
        )
