"""The torch references of a pass in FP8: right anywhere, and slow.

Rows keep their bits in any company. Sums of products of E4M3 are exact in float64, whatever their
order; logits are computed row by row, and so is attention; the rest looks at one row or one number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engine.fp8.inputs import Bounds, Inputs
from foredraft.engine.fp8.operations import Matrix, Tokens
from kernels.e4m3 import quantize_rows_reference
from kernels.fp8_gemm_skinny import fp8_gemm_reference
from kernels.kv_layout import KVLayer
from kernels.lm_head import lm_head_reference
from kernels.quantize_weight import quantize_weight_reference
from kernels.rmsnorm_residual_quant import (
    rmsnorm_residual_quant_reference,
    rmsnorm_residual_reference,
)
from kernels.rope_kv_write import HeadNorms, rope_kv_write_reference
from kernels.silu_mul_quant import silu_mul_quant_reference
from kernels.tree_attention import tree_attention_reference


class ReferenceOperations:
    """As `Operations` says."""

    name = "torch references"

    def quantize_weight(self, weight: Tensor) -> Matrix:
        return Matrix(*quantize_weight_reference(weight))

    def embed(self, embedding: Tensor, token: Tensor) -> Tensor:
        return embedding[token]

    def norm_quantize(self, x: Tensor, gamma: Tensor, eps: float) -> Tokens:
        codes, scales, _ = rmsnorm_residual_quant_reference(x, gamma, eps)
        return Tokens(codes, scales)

    def norm(self, x: Tensor, gamma: Tensor, eps: float) -> Tensor:
        return rmsnorm_residual_reference(x, gamma, eps)[0].bfloat16()

    def quantize(self, x: Tensor) -> Tokens:
        return Tokens(*quantize_rows_reference(x))

    def silu_mul_quantize(self, gate_up: Tensor) -> Tokens:
        return Tokens(*silu_mul_quant_reference(gate_up))

    def product(
        self, x: Tokens, weight: Matrix, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        made = fp8_gemm_reference(
            x.codes, x.scales, weight.codes, weight.scales, bias=bias, residual=residual
        )
        return made.bfloat16()

    def chunk_product(
        self, x: Tokens, weight: Matrix, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        return self.product(x, weight, bias, residual)

    def write(
        self,
        qkv: Tensor,
        turns: Tensor,
        inputs: Inputs,
        layer: KVLayer,
        head_norms: HeadNorms | None,
    ) -> Tensor:
        kv_heads, head_dim = layer.codes.shape[1], layer.codes.shape[4]
        heads = qkv.shape[1] // head_dim - 2 * kv_heads
        q = qkv.new_zeros((len(qkv), heads, head_dim))
        rope_kv_write_reference(
            qkv, turns, inputs.rows.position, inputs.place, layer, q, head_norms
        )
        return q

    def attend(self, q: Tensor, layer: KVLayer, inputs: Inputs, bounds: Bounds) -> Tensor:
        out = tree_attention_reference(q, layer, inputs.tables, inputs.rows, inputs.path)
        return out.flatten(1).bfloat16()

    def chunk_attend(self, q: Tensor, layer: KVLayer, inputs: Inputs) -> Tensor:
        return self.attend(q, layer, inputs, Bounds(len(q), len(q)))

    def logits(self, x: Tensor, head: Tensor) -> Tensor:
        if not len(x):
            return x.new_zeros((0, len(head)), dtype=torch.float32)
        return torch.cat([lm_head_reference(row[None], head) for row in x]).float()
