"""The forward pass in FP8 over the rows of a step, or of a chunk of a prompt.

The residual stream is bfloat16. What a linear layer takes is quantised per token; what it gives is
bfloat16, the stream added before it is rounded. Every operation looks at one row, or is one whose
rows keep their bits in any company.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from foredraft.engine.fp8.inputs import Bounds, Inputs
from foredraft.engine.fp8.operations import Operations
from foredraft.engine.fp8.weights import Weights
from kernels.kv_layout import KVLayer, KVPool

Product = Callable[..., Tensor]
Attend = Callable[[Tensor, KVLayer], Tensor]


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
        run = self.operations

        def attend(q: Tensor, kv: KVLayer) -> Tensor:
            return run.attend(q, kv, inputs, bounds)

        return self._logits(self._through(inputs, run.product, attend))

    def chunk(self, inputs: Inputs) -> Tensor:
        """Run a chunk's rows, padding included: the residual stream behind the last layer."""
        run = self.operations

        def attend(q: Tensor, kv: KVLayer) -> Tensor:
            return run.chunk_attend(q, kv, inputs)

        return self._through(inputs, run.chunk_product, attend)

    def chunk_logits(self, x: Tensor) -> Tensor:
        """Logits of some rows of what `chunk` returned."""
        return self._logits(x)

    def _through(self, inputs: Inputs, product: Product, attend: Attend) -> Tensor:
        """The residual stream behind the last layer."""
        run, weights = self.operations, self.weights
        eps = weights.config.rms_eps
        x = run.embed(weights.embedding, inputs.rows.token)
        for number, layer in enumerate(weights.layers):
            kv = self.memory.layer(number)
            tokens = run.norm_quantize(x, layer.attention_norm, eps)
            qkv = product(tokens, layer.qkv, layer.qkv_bias)
            q = run.write(qkv, weights.turns, inputs, kv, layer.head_norms)
            x = product(run.quantize(attend(q, kv)), layer.out, residual=x)
            both = product(run.norm_quantize(x, layer.mlp_norm, eps), layer.gate_up)
            x = product(run.silu_mul_quantize(both), layer.down, residual=x)
        return x

    def _logits(self, x: Tensor) -> Tensor:
        eps = self.weights.config.rms_eps
        return self.operations.logits(
            self.operations.norm(x, self.weights.last_norm, eps), self.weights.head
        )
