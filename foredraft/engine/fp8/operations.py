"""What a pass in FP8 is made of: the kernels' operations, or torch references of the same.

Both round at the same places, to the same formats. A row's result is the same in any company in
either, but not the same in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from foredraft.engine.fp8.inputs import Bounds, Inputs
from kernels.kv_layout import KVLayer
from kernels.rope_kv_write import HeadNorms


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear layer's weights: float8_e4m3fn [outputs, inputs] and float32 [outputs]."""

    codes: Tensor
    scales: Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """Rows that a linear layer takes: float8_e4m3fn [rows, inputs] and float32 [rows]."""

    codes: Tensor
    scales: Tensor


class Operations(Protocol):
    """Activations are bfloat16 [rows, columns] wherever nothing else is said."""

    name: str  # for the log

    def quantize_weight(self, weight: Tensor) -> Matrix: ...

    def embed(self, embedding: Tensor, token: Tensor) -> Tensor: ...

    def norm_quantize(self, x: Tensor, gamma: Tensor, eps: float) -> Tokens: ...

    def norm(self, x: Tensor, gamma: Tensor, eps: float) -> Tensor: ...

    def quantize(self, x: Tensor) -> Tokens: ...

    def silu_mul_quantize(self, gate_up: Tensor) -> Tokens: ...

    def product(
        self, x: Tokens, weight: Matrix, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """Of a step's rows: each has the bits that it has alone."""
        ...

    def chunk_product(
        self, x: Tokens, weight: Matrix, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """Of a chunk's rows: each has the bits that it has in any other chunk."""
        ...

    def write(
        self,
        qkv: Tensor,
        turns: Tensor,
        inputs: Inputs,
        layer: KVLayer,
        head_norms: HeadNorms | None,
    ) -> Tensor:
        """Norm and turn queries and keys, write keys and values; queries [rows, heads, width]."""
        ...

    def attend(self, q: Tensor, layer: KVLayer, inputs: Inputs, bounds: Bounds) -> Tensor:
        """[rows, heads * head_dim]; rows of padding hold anything."""
        ...

    def chunk_attend(self, q: Tensor, layer: KVLayer, inputs: Inputs) -> Tensor:
        """`attend` for a chunk's rows: each has the bits of its place in the prompt."""
        ...

    def logits(self, x: Tensor, head: Tensor) -> Tensor:
        """float32 [rows, vocabulary]; each row has the bits that it has alone."""
        ...
